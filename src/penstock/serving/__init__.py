"""The server: compiled networks behind HTTP, computing fewer channels when requests pile up.

Stands on `penstock_runtime`; PyTorch is never imported here.
"""
