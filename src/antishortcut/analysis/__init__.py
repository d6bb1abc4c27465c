"""Geometry of features: what the teacher's states and a student rely on.

Pure functions of features (N, D) of the same samples, computed in float64. An undefined number is NaN, null in JSON:
without any direction, nothing can be measured along it.
"""
