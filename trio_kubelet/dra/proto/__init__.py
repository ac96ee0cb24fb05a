"""Generated messages of drivers of dynamic resources; `tools/gen_cri_proto.py` writes them."""
