"""The cgroups of pods and of what holds them: which there are with which limits, and who makes them."""
