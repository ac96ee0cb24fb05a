"""Generated messages of plugin registration (`registration_pb2`); `tools/gen_cri_proto.py` writes them."""
