"""Distributions of structured reports by sums over all of them; each group of steps is fitted as a whole."""

import itertools

import numpy as np

from stepcot_jax.chain import NOT_ANNOTATED


def list_reports(chain):
    """Every report that the tree allows, as labels [report, step]."""
    whole = np.array(list(itertools.product(*map(range, chain.answers_per_step))))
    return np.unique(chain.close(whole), axis=0)


def _fit_group(tree, group, own, coupling):
    """P(answers of steps that are asked together) with the marginals `own` and the pairs' powers as a table."""
    sizes = [tree.chain.steps[step].num_answers for step in group]
    weights = np.ones(sizes)
    for place, step in enumerate(group):
        if step in tree.pairs:
            partner, rows = tree.pairs[step]
            axes = [place, group.index(partner)]
            pair = tree.shares[partner, : sizes[axes[1]], None] * rows
            shape = [size if axis in axes else 1 for axis, size in enumerate(sizes)]
            weights = weights * (pair if axes[0] > axes[1] else pair.T).reshape(shape) ** coupling
    for _ in range(2000):
        for place, step in enumerate(group):
            others = tuple(axis for axis in range(len(group)) if axis != place)
            factor = own[step, : sizes[place]] / weights.sum(axis=others)
            weights = weights * factor.reshape([-1 if axis == place else 1 for axis in range(len(group))])
    return weights


def report_probabilities(tree, own, coupling):
    """P(report) of each of `list_reports` for one case's own distributions [step, answer]."""
    reports, steps = list_reports(tree.chain), tree.chain.steps
    total = np.ones(len(reports))
    for asked_if in {step.asked_if for step in steps}:
        group = [position for position, step in enumerate(steps) if step.asked_if == asked_if]
        table = _fit_group(tree, group, own, coupling)
        labels = reports[:, group]
        total *= np.where(labels[:, 0] == NOT_ANNOTATED, 1.0, table[tuple(np.maximum(labels, 0).T)])
    return total


def condition(chain, weights, given):
    """Weights of the reports under given answers [step, answer]; a closed step counts its least likely answer."""
    reports = list_reports(chain)
    for position, step in enumerate(chain.steps):
        told = given[position, : step.num_answers]
        if told.any():
            likelihood = np.append(told, told.min())
            labels = reports[:, position]
            weights = weights * likelihood[np.where(labels == NOT_ANNOTATED, len(told), labels)]
    return weights / weights.sum()


def step_shares(chain, weights):
    """P(asked, answer) [step, answer], and P(not asked) in the last column."""
    reports, width = list_reports(chain), max(chain.answers_per_step)
    states = np.where(reports == NOT_ANNOTATED, width, reports)
    return np.einsum("r,rsa->sa", weights, states[:, :, None] == np.arange(width + 1))
