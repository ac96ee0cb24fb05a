"""The node's ports: `server/http/` connections and routing (h11), `server/access/` who may ask,
`server/logs/`, `server/streams/` exec, attach, port-forward, `server/pages/` everything else.
"""
