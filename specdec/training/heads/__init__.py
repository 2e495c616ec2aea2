"""Training of draft heads, which read the target's hidden states.

`texts` are what the target writes, with its states; `rollout` is the head over whole texts, its loss and its α;
`writer` has the target write them, `folder` has the first weights and the checkpoint, and `head` is the whole training.
"""
