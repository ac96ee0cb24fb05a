"""Generated CRI v1 messages (`api_pb2`); `tools/gen_cri_proto.py` writes them."""
