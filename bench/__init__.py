"""Measurements that need their own code; `launch.py bench` runs the ones for everybody."""
