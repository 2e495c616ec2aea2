"""The drafters that this verifier uses.

`pool` keeps one client and one link for each drafter that exists, and chooses the link of a session.
`session_drafts` sends a session's commits over its link; drafted tokens enter from the stream, `draft_buffer` keeps
those that continue the committed ones, and proposals leave to the session. When a drafter fails, its sessions go on
without drafts or with another drafter.
"""
