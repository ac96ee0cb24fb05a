"""The Pods service (`v1alpha1.Pods`, gate PodsAPI): the pods of this node, and what becomes of them."""
