"""The page of the node: its pods, events and figures, live in a browser.

`rows` says what is shown of a pod and `shown` numbers snapshots and what became different since: both are
pure. `feed` looks at the agent once for all readers. `server/pages/node_page.py` serves it; `static/` is
the page itself.
"""
