"""Step-CoT in float64 NumPy, written from the equations in facts.md: loops, dropped rows, explicit matrices.

Slow but plain: one case, one head and one destination at a time. Parameters are the Flax trees as
plain nested dicts; logits are lists with one [case, answer] array per step, without padding.
"""

import numpy as np


def as_float64(tree):
    """A copy of a parameter tree with float64 leaves that may be changed in place."""
    if hasattr(tree, "items"):
        return {name: as_float64(value) for name, value in tree.items()}
    return np.array(tree, np.float64)


def pick(tree, step):
    """One step's parameters from leaves stacked on a step axis."""
    if hasattr(tree, "items"):
        return {name: pick(value, step) for name, value in tree.items()}
    return tree[step]


# Building blocks


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def relu(x):
    return np.maximum(x, 0.0)


def elu(x):
    return np.where(x > 0, x, np.exp(np.minimum(x, 0.0)) - 1.0)


def leaky_relu(x, slope):
    return x if x > 0 else slope * x


def softmax(x):
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def log_softmax(x):
    shifted = x - x.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def linear(x, params):
    return x @ params["kernel"] + params["bias"]


def layer_norm(x, params, epsilon=1e-5):
    mean = x.mean(axis=-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon) * params["scale"] + params["bias"]


def block(x, params):
    return relu(layer_norm(linear(x, params["linear"]), params["norm"]))


# Graph attention, memory


def graph_attention(nodes, params, *, slope=0.2, allowed=None, factors=None):
    """One layer on one case's nodes [node, width]; `factors` [head, i, j] multiply the attention weights."""
    num_nodes, (num_heads, width) = len(nodes), params["source"].shape
    sources = [j for j in range(num_nodes) if allowed is None or allowed[j]]
    output = np.zeros((num_nodes, num_heads * width))
    attention = np.zeros((num_heads, num_nodes, num_nodes))
    for head in range(num_heads):
        columns = slice(head * width, (head + 1) * width)
        values = nodes @ params["linear"]["kernel"][:, columns]
        for i in range(num_nodes if sources else 0):
            to_i = params["target"][head] @ values[i]
            scores = [leaky_relu(to_i + params["source"][head] @ values[j], slope) for j in sources]
            for j, weight in zip(sources, softmax(np.array(scores)), strict=True):
                attention[head, i, j] = weight
                output[i, columns] += weight * (1.0 if factors is None else factors[head, i, j]) * values[j]
    return output + params["bias"], attention


def graph_attention_stack(nodes, params, *, slope=0.2, allowed=None, factors=None):
    """All layers on one case's nodes, with the attention of each layer; `factors` [layer, head, i, j]."""
    attentions = []
    for layer in range(sum(name.startswith("attention_") for name in params)):
        attended, attention = graph_attention(
            nodes,
            params[f"attention_{layer}"],
            slope=slope,
            allowed=allowed,
            factors=None if factors is None else factors[layer],
        )
        residual = linear(nodes, params[f"residual_{layer}"])
        nodes = elu(layer_norm(attended + residual, params[f"norm_{layer}"]))
        attentions.append(attention)
    return nodes, np.stack(attentions)


def gru_cell(x, h, params):
    """PyTorch's GRUCell, with gates in the order reset, update, new."""
    width = h.shape[-1]

    def gate(name, vector, k):
        part = slice(k * width, (k + 1) * width)
        return vector @ params[name]["kernel"][:, part] + params[name]["bias"][part]

    r = sigmoid(gate("input", x, 0) + gate("hidden", h, 0))
    z = sigmoid(gate("input", x, 1) + gate("hidden", h, 1))
    n = np.tanh(gate("input", x, 2) + r * gate("hidden", h, 2))
    return (1.0 - z) * n + z * h


# Teacher and student


SILENCED = {"attention": ("attention",), "context": ("context",), "head": ("image", "fusion_0", "fusion_1")}
"""The places of dropout that have each of the teacher's rates."""


def teacher(
    params, image_features, text_features=None, *, given=None, node_mask=None, slope=0.2, silent=(), factors=None
):
    """All cases; the places named in `silent` ("attention", "context", "head") give zeros, as dropout of rate 1 does.

    `text_features` are [case, step, width] or [step, width]; None takes the learned step vectors. `factors` are, by
    place of dropout, what its values are multiplied by, [step, case, ...].
    """
    zeros = {place: np.zeros((1, 1)) for rate in silent for place in SILENCED[rate]}
    num_steps = sum(name.startswith("classifier_") for name in params)
    readings = []
    for case, image in enumerate(np.asarray(image_features, np.float64)):
        if text_features is None:
            text = params["step_vectors"]
        else:
            text = np.asarray(text_features, np.float64)
            text = text[case] if text.ndim == 3 else text
        answers = [-1] * num_steps if given is None else given[case]
        allowed = None if node_mask is None else node_mask[case]
        own = {place: factor[:, case] for place, factor in (factors or {}).items()}
        own |= {place: np.broadcast_to(zero, (num_steps, 1)) for place, zero in zeros.items()}
        readings.append(_teach_case(params, image, text, answers, allowed, slope, own))
    return {
        "logits": [np.stack([reading["logits"][step] for reading in readings]) for step in range(num_steps)],
        **{name: np.stack([reading[name] for reading in readings]) for name in ("image_features", "attention")},
        "memory": np.stack([reading["memory"] for reading in readings]) if "memory_start" in params else None,
    }


def _teach_case(params, image, text, answers, allowed, slope, factors):
    if "text_projection" in params:
        text = linear(text, params["text_projection"])
    has_memory = "memory_start" in params
    nodes = np.vstack([text, params["memory_start"]]) if has_memory else text
    reading = {"logits": [], "image_features": [], "attention": [], "memory": []}
    for step, answer in enumerate(answers):
        shape = (_num_layers(params), *params["graph_attention"]["attention_0"]["source"].shape[:1], *[len(nodes)] * 2)
        factor = {place: own[step] for place, own in factors.items()}
        nodes, attention = graph_attention_stack(
            nodes,
            params["graph_attention"],
            slope=slope,
            allowed=allowed,
            factors=np.broadcast_to(factor.get("attention", 1.0), shape),
        )
        source = np.concatenate([nodes[step], nodes[-1]]) if has_memory else nodes[step]
        context = block(source, params["context"]) * factor.get("context", 1.0)
        feature = block(image, pick(params["image_projections"], step)) * factor.get("image", 1.0)
        head = pick(params["heads"], step)
        hidden = block(np.concatenate([feature, context]), head["fusion_0"]) * factor.get("fusion_0", 1.0)
        hidden = block(hidden, head["fusion_1"]) * factor.get("fusion_1", 1.0)
        classifier = params[f"classifier_{step}"]
        logits = linear(hidden, classifier)
        if has_memory:
            belief = softmax(logits) if answer < 0 else np.eye(len(logits))[answer]
            conclusion = linear(classifier["kernel"] @ belief, params["conclusion"])
            nodes = np.vstack([nodes[:-1], gru_cell(conclusion, nodes[-1], params["memory_cell"])])
            reading["memory"].append(nodes[-1])
        for name, value in (("logits", logits), ("image_features", feature), ("attention", attention)):
            reading[name].append(value)
    return {name: value if name == "logits" else np.array(value) for name, value in reading.items()}


def _num_layers(params):
    return sum(name.startswith("attention_") for name in params["graph_attention"])


def student(params, image_features, given=None):
    """Logits and the image feature before any answer; `given` [case, step], -1 to predict."""
    feature = first = block(np.asarray(image_features, np.float64), params["image_projection"])
    logits = []
    for step in range(sum(name.startswith("head_") for name in params)):
        head = params[f"head_{step}"]
        logits.append(linear(feature, head))
        passed = logits[-1].copy()
        for case, answer in enumerate([] if given is None else given[:, step]):
            if answer >= 0:
                log = np.log(np.where(np.arange(passed.shape[1]) == answer, 1.0, 0.01))
                passed[case] = log - log.mean()
        feature = feature + np.tanh(passed @ head["kernel"].T)
    return {"logits": logits, "image_features": first}


# Losses of one step; rows that are not annotated are dropped


def cross_entropy(logits, labels, annotated, weights=None):
    logits, labels = np.asarray(logits, np.float64)[annotated], np.asarray(labels)[annotated]
    if not len(labels):
        return 0.0
    values = -log_softmax(logits)[np.arange(len(labels)), labels]
    share = np.ones(len(labels)) if weights is None else np.asarray(weights, np.float64)[labels]
    return (share * values).sum() / share.sum()


def kullback_leibler(target_logits, logits, temperature):
    p, q = (softmax(np.asarray(x, np.float64) / temperature) for x in (target_logits, logits))
    return (p * np.log(p / q)).sum(axis=-1)


def distillation(teacher_logits, student_logits, annotated, temperature=2.0):
    if not np.any(annotated):
        return 0.0
    return temperature**2 * kullback_leibler(teacher_logits[annotated], student_logits[annotated], temperature).mean()


def alignment_weight(u, v, normaliser="cka"):
    """w_fw of u and v with explicit centring matrices; no mask."""
    size = len(u)
    if size < 2:
        return 0.0
    centre = np.eye(size) - np.ones((size, size)) / size
    gram_u, gram_v = (centre @ (np.asarray(x, np.float64) @ np.asarray(x, np.float64).T) @ centre for x in (u, v))

    def h(gram):
        return (gram * gram).sum() if normaliser == "cka" else np.trace(gram)

    return (gram_u * gram_v).sum() / np.sqrt(h(gram_u) * h(gram_v))


def channel_alignment(teacher_projected, student_projected, annotated, temperature=2.0, normaliser="cka"):
    u, v = np.asarray(teacher_projected, np.float64)[annotated], np.asarray(student_projected, np.float64)[annotated]
    if len(u) < 2:
        return 0.0, 0.0
    weight = alignment_weight(softmax(u / temperature), softmax(v / temperature), normaliser)
    return weight * kullback_leibler(u, v, temperature).mean(), weight


# Totals


def teacher_objective(logits, labels, answer_weights=None):
    weights = [None] * len(logits) if answer_weights is None else answer_weights
    parts = [cross_entropy(x, labels[:, s], labels[:, s] >= 0, weights[s]) for s, x in enumerate(logits)]
    return {"total": sum(parts), "hard_label": np.array(parts)}


def student_objective(
    *,
    student,
    teacher,
    labels,
    student_projection,
    teacher_projection,
    alpha_kd=0.5,
    alpha_ch=1.0,
    temperature=2.0,
    normaliser="cka",
    answer_weights=None,
):
    """Total and parts; `student` and `teacher` are readings of this module."""
    hard = teacher_objective(student["logits"], labels, answer_weights)["hard_label"]
    soft, aligned, weight = [], [], []
    for step, logits in enumerate(student["logits"]):
        annotated = labels[:, step] >= 0
        soft.append(distillation(teacher["logits"][step], logits, annotated, temperature))
        loss, w = channel_alignment(
            linear(teacher["image_features"][:, step], teacher_projection),
            linear(student["image_features"], student_projection),
            annotated,
            temperature,
            normaliser,
        )
        aligned.append(loss)
        weight.append(w)
    return {
        "total": hard.sum() + alpha_kd * sum(soft) + alpha_ch * sum(aligned),
        "hard_label": hard,
        "soft_label": np.array(soft),
        "channel_alignment": np.array(aligned),
        "alignment_weight": np.array(weight),
    }


# Optimizer


def clip_by_norm(gradients, largest):
    """torch's clip_grad_norm_ on a list of arrays."""
    norm = np.sqrt(sum((gradient**2).sum() for gradient in gradients))
    return [gradient * min(1.0, largest / (norm + 1e-6)) for gradient in gradients]


class AdamW:
    """torch's AdamW on a list of arrays."""

    def __init__(self, params, *, lr, weight_decay=0.01, betas=(0.9, 0.999), eps=1e-8):
        self.params = [np.array(param, np.float64) for param in params]
        self.lr, self.weight_decay, self.betas, self.eps, self.count = lr, weight_decay, betas, eps, 0
        self.first, self.second = ([np.zeros_like(param) for param in self.params] for _ in range(2))

    def step(self, gradients):
        self.count += 1
        b1, b2 = self.betas
        for k, gradient in enumerate(gradients):
            self.first[k] = b1 * self.first[k] + (1 - b1) * gradient
            self.second[k] = b2 * self.second[k] + (1 - b2) * gradient**2
            first, second = self.first[k] / (1 - b1**self.count), self.second[k] / (1 - b2**self.count)
            self.params[k] = self.params[k] * (1 - self.lr * self.weight_decay)
            self.params[k] = self.params[k] - self.lr * first / (np.sqrt(second) + self.eps)
        return self.params


# ResNet


def convolve(images, kernel, stride, padding):
    """[case, height, width, channel] by [size, size, channel, out], zero-padded."""
    size = kernel.shape[0]
    padded = np.pad(images, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    rows, columns = ((padded.shape[axis] - size) // stride + 1 for axis in (1, 2))
    output = np.zeros((len(images), rows, columns, kernel.shape[-1]))
    for y in range(rows):
        for x in range(columns):
            window = padded[:, y * stride : y * stride + size, x * stride : x * stride + size]
            output[:, y, x] = np.tensordot(window, kernel, axes=3)
    return output


def group_norm(x, params, num_groups, epsilon=1e-5):
    grouped = x.reshape(len(x), -1, num_groups, x.shape[-1] // num_groups)
    mean, variance = (f(grouped, axis=(1, 3), keepdims=True) for f in (np.mean, np.var))
    return ((grouped - mean) / np.sqrt(variance + epsilon)).reshape(x.shape) * params["scale"] + params["bias"]


def max_pool(x):
    """3 x 3 windows, stride 2, padding 1."""
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
    rows, columns = (x.shape[1] - 1) // 2 + 1, (x.shape[2] - 1) // 2 + 1
    windows = [
        padded[:, 2 * y : 2 * y + 3, 2 * c : 2 * c + 3].max(axis=(1, 2)) for y in range(rows) for c in range(columns)
    ]
    return np.stack(windows, axis=1).reshape(len(x), rows, columns, x.shape[-1])


def residual_block(x, params, stride, num_groups):
    hidden = relu(group_norm(convolve(x, params["conv_0"]["kernel"], stride, 1), params["norm_0"], num_groups))
    hidden = group_norm(convolve(hidden, params["conv_1"]["kernel"], 1, 1), params["norm_1"], num_groups)
    if "shortcut" in params:
        x = group_norm(convolve(x, params["shortcut"]["kernel"], stride, 0), params["shortcut_norm"], num_groups)
    return relu(hidden + x)
