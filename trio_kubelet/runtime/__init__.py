"""What to do for a pod and doing it; `runtime/configs/` CRI configs."""
