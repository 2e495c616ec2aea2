"""Draft sources of a verifier: remote drafters and sources in this process.

`pool` keeps one client and one link for each known drafter, and chooses the link of a session. `session_drafts` sends
a session's commits over its link, with features of `feature_window` for a drafter that reads them. `draft_buffer` keeps
the received drafts that continue the committed tokens. When a drafter fails, its sessions go on without drafts or with
another drafter.
"""
