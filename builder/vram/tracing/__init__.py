"""The traced layer. Its modules import torch and transformers at the top, so only traced.py imports them."""
