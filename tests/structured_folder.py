"""A small folder in the layout of Rad-ReStruct, written from made-up reports, and a tree for tests of its figures."""

import json

from stepcot_jax.chain import Chain, Step

YES_NO = {"answer_type": "single_choice", "options": ["yes", "no"]}
WHERE = {"answer_type": "multi_choice", "options": ["apex", "base", "unspecified"]}
SIDE = {"answer_type": "single_choice", "options": ["left", "right", "both"]}
FIXED = {"answer_type": "fixed_choice", "options": ["mild"]}
TEMPLATE = [
    {"area": "foreign objects", "objects": {"stent": {"infos": {}}}},
    {
        "area": "respiratory system",
        "sub_areas": {
            "lung": {
                "signs": {
                    "opacity": {"infos": {"body_region": WHERE, "localization": SIDE}},
                    "cyst": {"infos": {"degree": FIXED}},
                }
            }
        },
    },
    {"area": "abdomen", "infos": {"attributes": SIDE}},
]
INSTANCES = {"lung/opacity": 2}
NORMAL = {}
OPACITIES = {"opacity": [{"body_region": ["apex", "base"], "localization": ["left"]},
                         {"body_region": ["unspecified"], "localization": ["both"]}]}  # fmt: skip
CYST = {"cyst": [{"degree": ["mild"]}], "abdomen": [{"attributes": ["right"]}]}


def questions_of(report):
    """The questions that a report is asked, in order, as the files list them; histories are left empty."""
    asked = []

    def ask(path, answers, info=YES_NO):
        asked.append(["?", answers, [], {**info, "path": path}])

    ask("foreign objects_objects", ["no"])
    signs = [name for name in ("opacity", "cyst") if name in report]
    ask("lung_signs", ["yes" if signs else "no"])
    for name, most, infos in (
        ("opacity", 2, {"body_region": WHERE, "localization": SIDE}),
        ("cyst", 1, {"degree": FIXED}),
    ):
        if not signs:
            break
        found = report.get(name, [])
        for instance in found:
            ask(f"lung_signs_{name}", ["yes"])
            for field, info in infos.items():
                ask(f"lung_signs_{name}_{field}", instance[field], info)
        if len(found) < most:
            ask(f"lung_signs_{name}", ["no"])
    ask("abdomen_infos", ["yes" if "abdomen" in report else "no"])
    for instance in report.get("abdomen", []):
        ask("abdomen_infos_attributes", instance["attributes"], SIDE)
    return asked


def write_structured_folder(root, **splits):
    """Write the folder; each split is a dict from report number to report."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "template_final_clean.json").write_text(json.dumps(TEMPLATE))
    (root / "max_instances.json").write_text(json.dumps(INSTANCES))
    images = {}
    for split, reports in splits.items():
        (root / f"{split}_qa_pairs").mkdir()
        for number, report in reports.items():
            images[str(number)] = [f"CXR{number}_IM-1"]
            (root / f"{split}_qa_pairs" / f"{number}.json").write_text(json.dumps(questions_of(report)))
    (root / "id_to_img_mapping_frontal_reports.json").write_text(json.dumps(images))
    return root


def make_tree():
    """Signs? -> opacity? -> where (several right answers), side; opacity 2?; and a topic without elements."""
    yes, opacity = (0, 0), (1, 0)
    return Chain(
        (
            Step("signs", "Any signs?", ("yes", "no"), part="level 1"),
            Step("opacity/1", "Opacity?", ("yes", "no"), yes, part="level 2/signs"),
            *(
                Step(f"where: {name}", "Where?", ("yes", "no"), opacity, choice=name, part="level 3")
                for name in ("apex", "base", "unspecified")
            ),
            Step("side", "Side?", ("left", "right", "both"), opacity, part="level 3"),
            Step("opacity/2", "Another?", ("yes", "no"), opacity, part="level 2/signs"),
            Step("abdomen", "Abdomen?", ("yes", "no"), part="level 2/body_regions"),
        )
    )
