"""Plain definitions of the networks of the paper and their relatives."""

from penstock.zoo.m_cifarnet import MCifarNet, m_cifarnet

__all__ = ["MCifarNet", "m_cifarnet"]
