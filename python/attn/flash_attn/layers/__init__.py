"""Modules of flash_attn.layers."""
