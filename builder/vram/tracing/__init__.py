"""The traced layer. Its modules import torch and transformers at the top, so only builder/vram/traced.py imports them."""
