"""Generated messages of the pod resources service, version 1; `tools/gen_cri_proto.py` writes them."""
