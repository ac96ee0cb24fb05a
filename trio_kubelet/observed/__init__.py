"""Values of what was seen: pods and containers of the runtime, lifecycle events, probe verdicts."""
