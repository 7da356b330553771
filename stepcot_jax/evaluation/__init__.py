"""Figures with intervals, calibration, gate, operating points: functions of predictions or replies.

It knows no trainer, network or file of cases; tables and pages of a run stand in `tools`. Read `predictions`.
"""
