"""Export and restore of KV blocks.

A gateway finds, exports and restores the KV of a prefix by its tokens and cache salt. Exported values have a frame that
names their model and tokens. The frame of a restored value is checked before the engine stores the value.
"""
