"""Elasticity (ESJ): how many workers to start with, and what to shed when they are full. Pure functions of the utilization."""
