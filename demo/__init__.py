"""The main job, shown: agents stream one model through one broker while its worker is swapped."""
