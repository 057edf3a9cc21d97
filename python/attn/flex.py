"""FlexAttention's functions, torch.nn.attention.flex_attention, by attn."""

from .torch.flex import BlockMask, create_block_mask, flex_attention

__all__ = ["BlockMask", "create_block_mask", "flex_attention"]
