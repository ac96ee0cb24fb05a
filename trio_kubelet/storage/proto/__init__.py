"""Generated CSI v1 messages of the Node service (`csi_pb2`); `tools/gen_cri_proto.py` writes them."""
