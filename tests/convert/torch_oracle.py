"""Teacher, student, losses and joint training written in PyTorch from facts.md, under the authors' parameter names."""

import json

import numpy as np
import torch
from torch import nn
from torch.nn import functional

META = {
    "batch": 4, "step_num_classes": [3, 2, 4], "teacher_dim": 6, "student_dim": 5, "image_dim": 7, "gat_heads": 2,
    "gat_layers": 1, "gat_head_dim": 3, "proj_dim": 3, "temperature": 2.0, "alpha_kd": 0.5, "alpha_ch": 1.0,
    "teacher_lr": 0.005, "student_lr": 0.01, "weight_decay": 0.01, "adam_eps": 1e-8, "grad_clip": 1.0,
    "train_steps": 3, "negative_slope": 0.2, "layer_norm_eps": 1e-5,
}  # fmt: skip


def block(into, out):
    return [nn.Linear(into, out), nn.LayerNorm(out), nn.ReLU(), nn.Dropout(0.0)]


class AttentionLayer(nn.Module):
    def __init__(self, width, heads, slope):
        super().__init__()
        self.W = nn.Linear(width, width, bias=False)
        self.a_src = nn.Parameter(torch.zeros(heads, width // heads))
        self.a_dst = nn.Parameter(torch.zeros(heads, width // heads))
        self.bias = nn.Parameter(torch.zeros(width))
        self.slope = slope

    def forward(self, nodes, mask=None):
        projected = self.W(nodes).unflatten(-1, self.a_src.shape)
        at_destination, at_source = (projected * self.a_src).sum(-1), (projected * self.a_dst).sum(-1)
        scores = functional.leaky_relu(at_destination[:, :, None] + at_source[:, None], self.slope)
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, :, None], -torch.inf)
        attention = scores.softmax(dim=2)
        mixed = torch.einsum("bijh,bjhd->bihd", attention, projected).flatten(-2)
        return mixed + self.bias, attention.permute(0, 3, 1, 2)


class Attention(nn.Module):
    def __init__(self, width, heads, layers, slope):
        super().__init__()
        self.layers = nn.ModuleList(AttentionLayer(width, heads, slope) for _ in range(layers))
        self.projs = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))

    def forward(self, nodes, mask=None):
        attentions = []
        for layer, residual, norm in zip(self.layers, self.projs, self.norms, strict=True):
            mixed, attention = layer(nodes, mask)
            nodes = functional.elu(norm(mixed + residual(nodes)))
            attentions.append(attention)
        return nodes, attentions


class StepModel(nn.Module):
    def __init__(self, image_width, width, answers):
        super().__init__()
        self.img_proj = nn.Sequential(*block(image_width, width))
        self.fusion_head = nn.Sequential(*block(2 * width, width), *block(width, width))
        self.classifier = nn.Linear(width, answers)


class Teacher(nn.Module):
    def __init__(self, meta):
        super().__init__()
        width = meta["teacher_dim"]
        self.step_models = nn.ModuleList(
            StepModel(meta["image_dim"], width, answers) for answers in meta["step_num_classes"]
        )
        self.memory_gat = Attention(width, meta["gat_heads"], meta["gat_layers"], meta["negative_slope"])
        self.fusion_proj = nn.Sequential(*block(2 * width, width))
        self.memory_init = nn.Parameter(torch.zeros(1, width))
        self.mem_gru = nn.GRUCell(width, width)
        self.pred2mem = nn.Linear(width, width)

    def forward(self, images, texts):
        nodes = torch.cat([texts, self.memory_init.expand(len(images), -1)[:, None]], dim=1)
        logits, features = [], []
        for step, model in enumerate(self.step_models):
            nodes, _ = self.memory_gat(nodes)
            context = self.fusion_proj(torch.cat([nodes[:, step], nodes[:, -1]], dim=-1))
            features.append(model.img_proj(images))
            logits.append(model.classifier(model.fusion_head(torch.cat([features[-1], context], dim=-1))))
            conclusion = self.pred2mem(logits[-1].softmax(-1) @ model.classifier.weight)
            nodes = torch.cat([nodes[:, :-1], self.mem_gru(conclusion, nodes[:, -1])[:, None]], dim=1)
        return logits, features


class Student(nn.Module):
    def __init__(self, meta):
        super().__init__()
        width = meta["student_dim"]
        self.img_proj = nn.Sequential(*block(meta["image_dim"], width))
        self.step_heads = nn.ModuleList(nn.Linear(width, answers) for answers in meta["step_num_classes"])

    def forward(self, images):
        feature = first = self.img_proj(images)
        logits = []
        for head in self.step_heads:
            logits.append(head(feature))
            feature = feature + torch.tanh(logits[-1] @ head.weight)
        return logits, first


def make_networks(meta, seed=0):
    """The four networks, with no parameter left at a value that would hide a swap."""
    torch.manual_seed(seed)
    networks = {
        "teacher": Teacher(meta),
        "student": Student(meta),
        "proj_t": nn.Linear(meta["teacher_dim"], meta["proj_dim"]),
        "proj_s": nn.Linear(meta["student_dim"], meta["proj_dim"]),
    }
    with torch.no_grad():
        for network in networks.values():
            for parameter in network.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
    return networks


def tensors(network):
    return {name: tensor.detach().numpy().copy() for name, tensor in network.state_dict().items()}


def cross_entropies(logits, labels, valid):
    def of_step(step):
        rows = valid[:, step]
        if not rows.any():
            return 0 * logits[step].sum()
        return functional.cross_entropy(logits[step][rows], labels[rows, step])

    return [of_step(step) for step in range(len(logits))]


def gram(rows):
    centred = rows - rows.mean(0)
    return centred @ centred.T


def alignment(u, v, temperature, normaliser):
    """w_fw * mean KL and w_fw of the valid rows of both projections."""
    if len(u) < 2:
        return 0 * v.sum(), 0 * v.sum()
    teacher, student = (u / temperature).softmax(-1), (v / temperature).softmax(-1)
    gram_u, gram_v = gram(teacher), gram(student)
    if normaliser == "cka":
        h_uu, h_vv = (gram_u * gram_u).sum(), (gram_v * gram_v).sum()
    else:
        h_uu, h_vv = gram_u.trace(), gram_v.trace()
    weight = (gram_u * gram_v).sum() / (h_uu * h_vv).sqrt()
    return weight * (teacher * (teacher.log() - student.log())).sum(-1).mean(), weight


def student_losses(networks, meta, inputs, targets, variant):
    images, labels, valid = inputs["image_features"], inputs["labels"], inputs["valid_mask"]
    temperature = meta["temperature"]
    logits, feature = networks["student"](images)
    projected = networks["proj_s"](feature.detach() if variant == "reference" else feature)
    parts = {"ce": cross_entropies(logits, labels, valid), "kd": [], "ch": [], "w": []}
    for step, (target, teacher_feature) in enumerate(zip(*targets, strict=True)):
        rows = valid[:, step]
        soft, own = (target[rows] / temperature).log_softmax(-1), (logits[step][rows] / temperature).log_softmax(-1)
        kd = temperature**2 * (soft.exp() * (soft - own)).sum(-1).mean() if rows.any() else 0 * own.sum()
        u = networks["proj_t"](teacher_feature).detach()
        ch, weight = alignment(u[rows], projected[rows], temperature, "trace" if variant == "paper_trace" else "cka")
        for name, value in (("kd", kd), ("ch", ch), ("w", weight)):
            parts[name].append(value)
    parts = {name: torch.stack(values) for name, values in parts.items()}
    total = parts["ce"].sum() + meta["alpha_kd"] * parts["kd"].sum() + meta["alpha_ch"] * parts["ch"].sum()
    return parts, total


def gradients(networks, names, loss):
    for name in names:
        networks[name].zero_grad()
    loss.backward()
    return {
        f"{name}/{key}": parameter.grad.numpy().copy()
        for name in names
        for key, parameter in networks[name].named_parameters()
    }


def read_targets(networks, inputs):
    with torch.no_grad():
        return networks["teacher"](inputs["image_features"], inputs["text_features"])


def train(networks, meta, inputs):
    """The joint loop, reference variant: losses [step, 2]; the networks are changed."""
    parameters = {
        "teacher": list(networks["teacher"].parameters()),
        "student": [*networks["student"].parameters(), *networks["proj_s"].parameters()],
    }
    optimizers = {
        name: torch.optim.AdamW(
            group, lr=meta[f"{name}_lr"], weight_decay=meta["weight_decay"], eps=meta["adam_eps"]
        )
        for name, group in parameters.items()
    }  # fmt: skip
    losses = []
    for _ in range(meta["train_steps"]):
        logits, _ = networks["teacher"](inputs["image_features"], inputs["text_features"])
        totals = [sum(cross_entropies(logits, inputs["labels"], inputs["valid_mask"]))]
        for name in ("teacher", "student"):
            if name == "student":
                totals.append(student_losses(networks, meta, inputs, read_targets(networks, inputs), "reference")[1])
            optimizers[name].zero_grad()
            totals[-1].backward()
            nn.utils.clip_grad_norm_(parameters[name], meta["grad_clip"])
            optimizers[name].step()
        losses.append([total.item() for total in totals])
    return np.asarray(losses, np.float32)


def make_inputs(meta, seed):
    generator = np.random.default_rng(seed)
    batch, steps = meta["batch"], len(meta["step_num_classes"])
    labels = np.stack([generator.integers(0, answers, batch) for answers in meta["step_num_classes"]], axis=1)
    valid = np.ones((batch, steps), bool)
    valid[:, -1] = False  # a step without any valid case
    if steps > 2:
        valid[1:, -2] = False  # and one with a single one
    return {
        "image_features": generator.standard_normal((batch, meta["image_dim"]), np.float32),
        "text_features": generator.standard_normal((batch, steps, meta["teacher_dim"]), np.float32),
        "labels": np.where(valid, labels, -100),
        "valid_mask": valid,
    }


def golden_arrays(meta=None, seed=0):
    """A file of golden numbers in the documented format, as a dict of arrays."""
    meta = META if meta is None else meta
    networks, arrays = make_networks(meta, seed), {"meta": np.frombuffer(json.dumps(meta).encode(), np.uint8)}
    found = make_inputs(meta, seed + 1)
    arrays |= {f"inputs/{name}": array for name, array in found.items()}
    inputs = {name: torch.from_numpy(array) for name, array in found.items()}
    arrays |= {f"params/{name}/{key}": value for name, net in networks.items() for key, value in tensors(net).items()}
    arrays |= part_arrays(networks["teacher"], meta, seed)
    logits, features = networks["teacher"](inputs["image_features"], inputs["text_features"])
    own, feature = networks["student"](inputs["image_features"])
    for step in range(len(logits)):
        arrays[f"teacher/logits_{step}"] = logits[step]
        arrays[f"teacher/image_feature_{step}"] = features[step]
        arrays[f"student/logits_{step}"] = own[step]
    arrays["student/image_feature"] = feature
    per_step = torch.stack(cross_entropies(logits, inputs["labels"], inputs["valid_mask"]))
    arrays |= {"loss/teacher_ce": per_step.sum(), "loss/teacher_ce_per_step": per_step}
    arrays |= {f"grads/{name}": value for name, value in gradients(networks, ["teacher"], per_step.sum()).items()}
    for variant in ("reference", "paper", "paper_trace"):
        parts, total = student_losses(networks, meta, inputs, read_targets(networks, inputs), variant)
        arrays |= {f"loss/{variant}/{name}_per_step": value for name, value in parts.items()}
        arrays[f"loss/{variant}/student_total"] = total
        found = gradients(networks, ["student", "proj_s"], total)
        arrays |= {f"grads/{variant}/{name}": value for name, value in found.items()}
    arrays["train/losses"] = train(networks, meta, inputs)
    for name, network in networks.items():
        arrays |= {f"train/params_after/{name}/{key}": value for key, value in tensors(network).items()}
    return {name: value.detach().numpy() if torch.is_tensor(value) else value for name, value in arrays.items()}


def part_arrays(teacher, meta, seed):
    torch.manual_seed(seed + 2)
    batch, nodes, width = meta["batch"], len(meta["step_num_classes"]) + 1, meta["teacher_dim"]
    nodes_in, x, h = torch.randn(batch, nodes, width), torch.randn(batch, width), torch.randn(batch, width)
    mask = torch.ones(batch, nodes, dtype=torch.bool)
    mask[::2, 0] = False
    nodes_out, attentions = teacher.memory_gat(nodes_in)
    return {
        "gat/nodes_in": nodes_in,
        "gat/nodes_out": nodes_out,
        "gat/attention_layer0": attentions[0],
        "gat/node_mask": mask,
        "gat/nodes_out_masked": teacher.memory_gat(nodes_in, mask)[0],
        "gru/x": x,
        "gru/h": h,
        "gru/out": teacher.mem_gru(x, h),
    }
