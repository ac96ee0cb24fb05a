"""Generated messages of the Pods service, version 1alpha1; `tools/gen_cri_proto.py` writes them."""
