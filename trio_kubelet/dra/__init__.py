"""Dynamic resources: claims of pods, prepared by drivers and given back; drivers and what is published
for them.
"""
