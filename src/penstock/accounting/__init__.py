"""What a network costs: MACs, memory accesses and peak memory, per layer and per image."""

from penstock.accounting.account import Account, LayerAccount
from penstock.accounting.count import CONVENTIONS, account

__all__ = ["CONVENTIONS", "Account", "LayerAccount", "account"]
