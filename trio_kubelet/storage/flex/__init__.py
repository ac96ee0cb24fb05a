"""Volumes of FlexVolume drivers: programs of the node that mount what the agent does not know."""
