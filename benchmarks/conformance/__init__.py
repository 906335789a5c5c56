"""Scoreboards: how much of a test suite that nobody here wrote does streamcrawl get right, and others?"""
