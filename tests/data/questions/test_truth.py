"""Each sentence of thinking and stages is read back into its claim, and the claim recomputed from the drawing.

The oracle reads the drawing itself: answers of the case, marks, masks, attenuation with and without findings. It shares
no code with the wording but the report's word tables, which `tests/data/phantom` checks.
"""

import itertools
import re

import numpy as np
import pytest

from stepcot_jax.chain import DEFAULT_CHAIN
from stepcot_jax.data.phantom import phantom
from stepcot_jax.data.phantom.anatomy import Frame, render_anatomy
from stepcot_jax.data.phantom.answers import WORDINGS
from stepcot_jax.data.phantom.findings import draw_findings
from stepcot_jax.data.questions.making import ground_phantom
from stepcot_jax.data.questions.questions import ask_questions
from stepcot_jax.reasoning.claims import find_claims
from stepcot_jax.reasoning.rules import KNOWLEDGE, SIGN_RULES

pytestmark = pytest.mark.slow

NUM_CASES, SIZE, SEED = 150, 64, 5
FOUND = {  # what a finding is called, and the labels whose boxes show it
    "pulmonary nodule": {"Nodule"},
    "atelectasis": {"Atelectasis"},
    "pulmonary infiltrate": {"Infiltration"},
    "pleural effusion": {"Effusion", "Pleural effusion"},
    "pneumonia": {"Pneumonia"},
    "cardiomegaly": {"Cardiomegaly"},
    "lung mass": {"Mass"},
    "pneumothorax": {"Pneumothorax"},
    "volume loss": {"Volume loss"},
    "mediastinal shift": {"Mediastinal shift"},
    "hilar lymphadenopathy": {"Lymphadenopathy"},
    "emphysema": {"Emphysema"},
}
LOOKS = {
    "fluid between lung and chest wall": ("Effusion", "Pleural effusion"),
    "air between lung and chest wall": ("Pneumothorax",),
    "a large heart shadow": ("Cardiomegaly",),
    "a raised hemidiaphragm": ("Volume loss",),
    "a displaced mediastinum": ("Mediastinal shift",),
    "large hilar shadows": ("Lymphadenopathy",),
    "rounded lucencies": ("Emphysema",),
}
LOOK = re.compile(
    r"I look at the \*\*(.+?)\*\* \(\[(\d+), (\d+), (\d+), (\d+)\]\) (?:and see|where I see|which shows) (.+)\."
)
OPTION = re.compile(r"Option ([A-D]), (.+?): (.+)\.")
LAST = re.compile(r"(?:So|Therefore|Hence) the answer is (.+)\.")
FORBIDDEN = re.compile(r"\breports?\b|\bfindings?\b|\bstated\b|\bgiven\b", re.IGNORECASE)


def _descriptions():
    """Return every description of a lesion with the answers to steps 1, 2, 3 and 5 that it states."""
    told = {}
    tables = [[(answer, word) for answer, words in WORDINGS[step].items() for word in words] for step in (1, 0, 2, 4)]
    for (second, how), (first, what), (third, pattern), (fifth, edge) in itertools.product(*tables):
        text = f"{how} {what}".strip()
        nature = " and ".join(part for part in (pattern, edge) if part)
        told[f"{text} with {nature}" if nature else text] = (first, second, third, fifth)
    return told


TOLD = _descriptions()
SIGNS = {word: answer for answer, words in WORDINGS[5].items() for word in words}
NAMES = {word: answer for answer, words in WORDINGS[6].items() for word in words} | {
    "normal chest radiograph": "Normal"
}


class Drawing:
    """The facts of one phantom, from its plan and its pixels."""

    def __init__(self, index):
        self.shot = phantom.plan_case(index, seed=SEED, prevalence="flat")
        self.drawn = phantom.draw_planned(self.shot, size=SIZE)
        labels = zip(DEFAULT_CHAIN.steps, self.drawn.case.answers, strict=True)
        self.answers = [step.options[label] for step, label in labels]
        self.labels = {mark.box.label for mark in self.drawn.marks}
        frame = Frame.of(self.shot.pose, SIZE)
        self.chest = render_anatomy(self.shot.scene.anatomy, frame)
        self.change = np.abs(draw_findings(self.shot.scene, chest=self.chest, frame=frame)[0] - self.chest.attenuation)
        self.regions = self._regions()

    def _regions(self):
        lungs = {side: (self.chest.lungs[sign] > 0.5) & ~self.drawn.heart_mask for side, sign in SIGNS_OF.items()}
        boxes = {f"{side} lung": _box(mask) for side, mask in lungs.items()}
        boxes["bilateral lung"] = _box(lungs["right"] | lungs["left"])
        boxes["cardiac region"] = _box(self.drawn.heart_mask)
        for side in SIGNS_OF:
            x1, y1, x2, y2 = boxes[f"{side} lung"]
            for number, zone in enumerate(("upper", "middle", "lower")):
                ends = (y1 + (y2 - y1) * part / 3 for part in (number, number + 1))
                top, bottom = (int(end + 0.5) for end in ends)
                boxes[f"{side} {zone} lung zone"] = (x1, top, x2, bottom)
            middle = boxes[f"{side} middle lung zone"]
            third = int((x2 - x1) / 3 + 0.5)
            inner = (x2 - third, x2) if side == "right" else (x1, x1 + third)
            boxes[f"{side} hilar structures"] = (inner[0], middle[1], inner[1], middle[3])
            quarter = int((y2 - y1) / 4 + 0.5)
            boxes[f"{side} hemidiaphragm"] = (x1, y2 - quarter, x2, min(SIZE, y2 + quarter))
        heart, right, left = (boxes[name] for name in ("cardiac region", "right lung", "left lung"))
        top = min(heart[1], boxes["bilateral lung"][1])
        boxes["mediastinum"] = (min(right[2], heart[0]), top, max(left[0], heart[2]), heart[3])
        return boxes

    def shows(self, name):
        return bool(FOUND[name] & self.labels)

    def is_clear(self, side):
        """Whether findings change no pixel of a lung, also behind the heart, by a hundredth; None if it is unclear."""
        lung = self.chest.overlaid[SIGNS_OF[side]] > 0.3
        if (self.answers[4], self.answers[6]) == ("Calcified", "Cardiomegaly"):
            lung &= ~self.drawn.heart_mask  # the calcified valve is the heart's
        most = self.change[lung].max()
        return True if most < 0.01 else False if most > 0.03 else None

    def is_box_of(self, box, label):
        """Whether a box is one of a label's, or, of more than three, holds exactly those of one side."""
        marks = [mark for mark in self.drawn.marks if mark.box.label == label]
        if len(marks) <= 3:
            return tuple(box) in {_corners(mark.box) for mark in marks}
        sides = [[_corners(mark.box) for mark in marks if mark.side == side] for side in (-1, 0, 1)]
        unions = [(*np.min(own, axis=0)[:2], *np.max(own, axis=0)[2:]) for own in sides if own]
        return tuple(box) in {tuple(map(float, union)) for union in unions}


SIGNS_OF = {"right": -1, "left": 1}


def _box(mask):
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return (int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1)


def _corners(box):
    return (float(box.x1), float(box.y1), float(box.x2), float(box.y2))


@pytest.fixture(scope="module")
def asked():
    found = []
    for index in range(NUM_CASES):
        image, _ = ground_phantom(index, seed=SEED, size=SIZE)
        found.append((Drawing(index), image, ask_questions(image, seed=SEED)))
    return found


def _sentences(text):
    return re.split(r"(?<=\.) (?=[A-Z])", text)


def _is_in(box, region, slack):
    x, y = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
    return region[0] - slack <= x <= region[2] + slack and region[1] - slack <= y <= region[3] + slack


def _check_look(drawing, record, reference, region, box, seen):
    assert tuple(map(float, box)) == reference.corners
    height = drawing.regions["bilateral lung"][3] - drawing.regions["bilateral lung"][1]
    if reference.label in drawing.regions:
        assert (region, tuple(map(int, reference.corners))) == (reference.label, drawing.regions[region])
    else:
        assert drawing.is_box_of(reference.corners, reference.label)
        # Signs beside a lung may lie a little outside of it; a zone is named only where the box is centred in it.
        assert _is_in(reference.corners, drawing.regions[region], 0 if "zone" in region else 0.12 * height + 1)
    if seen.startswith("no "):
        assert not drawing.shows(seen[3:])
        assert reference.label in drawing.regions
    elif seen == "clear lungs":
        assert not drawing.labels
        assert drawing.answers[6] == "Normal"
    elif seen == "nothing abnormal":
        assert drawing.is_clear(region.split()[0])
    elif seen == "a heart of normal size":
        assert drawing.shot.scene.anatomy.heart_size == drawing.shot.scene.healthy.heart_size
    elif seen in LOOKS:
        assert reference.label in LOOKS[seen]
    else:
        first, second, third, _, fifth = drawing.answers[:5]
        assert (TOLD[seen], reference.label) == ((first, second, third, fifth), drawing.answers[6])


def _is_true(drawing, record, text):
    """Whether an option is right, from the drawing."""
    if record.topic == "present":
        if text == "normal heart size":
            return drawing.shot.scene.anatomy.heart_size == drawing.shot.scene.healthy.heart_size
        if text.startswith("clear "):
            return drawing.is_clear(text.split()[1])
        return drawing.shows(text)
    return text == drawing.answers[{"diagnosis": 6, "zone": 3, "pattern": 2}[record.topic]]


def _check_option(drawing, record, letter, text, judgement):
    assert record.options["ABCD".index(letter)] == text
    is_true = _is_true(drawing, record, text)
    assert is_true == (letter in record.answer)
    if is_true:
        assert judgement == "this fits what I see"
    elif judgement.startswith("I see no ") and judgement != "I see no such pattern":
        assert not drawing.shows(judgement.removeprefix("I see no "))
        assert text in (judgement.removeprefix("I see no "), *FOUND[judgement.removeprefix("I see no ")])
    elif judgement == "the main abnormality is not centred there":
        zones = {"Upper": ["upper"], "Middle": ["middle"], "Lower": ["lower"]}.get(text.split()[0], [])
        names = [f"{side} {zone} lung zone" for zone in zones for side in SIGNS_OF]
        names += [f"{side} hilar structures" for side in SIGNS_OF] if text.startswith("Hilar") else []
        names += ["cardiac region"] if text == "Cardiac" else []
        boxes = [_corners(mark.box) for mark in drawing.drawn.marks if mark.box.label == drawing.answers[6]]
        if len(boxes) <= 3:
            assert not any(_is_in(box, drawing.regions[name], -0.01) for box in boxes for name in names)
    else:
        side = text.split()[1] if text.startswith("clear") else ""
        told = {"the chest is not normal": "Normal", "the heart is enlarged": "normal heart size"}
        told |= {"I see no such pattern": text, f"the {side} lung is not clear": text}
        assert told[judgement] == text


def test_thinking_is_true_of_the_picture(asked):
    counts = dict.fromkeys(("look", "option", "last"), 0)
    for drawing, _, records in asked:
        for record in records:
            assert not FORBIDDEN.search(record.thinking)
            *body, last = _sentences(record.thinking)
            looks = [match for sentence in body if (match := LOOK.fullmatch(sentence))]
            options = [match for sentence in body if (match := OPTION.fullmatch(sentence))]
            assert len(looks) + len(options) == len(body)
            for match, reference in zip(looks, record.references, strict=True):
                region, *box, seen = match.groups()
                _check_look(drawing, record, reference, region, map(int, box), seen)
            assert [match[1] for match in options] == list("ABCD"[: len(record.options)])
            for match in options:
                _check_option(drawing, record, *match.groups())
            spoken = LAST.fullmatch(last)[1]
            expected = record.answer if isinstance(record.answer, str) else ", ".join(record.answer)
            if record.kind == "single":
                expected = f"{record.answer}, {record.options['ABCD'.index(record.answer)]}"
            assert spoken == expected
            for name, number in (("look", len(looks)), ("option", len(options)), ("last", 1)):
                counts[name] += number
    assert counts["look"] > 700
    assert counts["option"] == 4 * 2 * NUM_CASES


def test_answers_references_and_organs_are_true_of_the_picture(asked):
    for drawing, _, (opened, closed, single, multi) in asked:
        if closed.topic == "normality":
            normal = drawing.answers[6] == "Normal"
            assert closed.answer == ("Yes" if normal != ("abnormal" in closed.question) else "No")
        else:
            name = closed.topic.removeprefix("presence of ")
            assert closed.answer == ("Yes" if drawing.shows(name) else "No")
            said = "heart" in closed.question if name == "cardiomegaly" else name in closed.question
            assert said or name in closed.question
        assert NAMES[opened.answer] == drawing.answers[6]
        assert set(WORDINGS[6].get(drawing.answers[6], ())) <= {*opened.accepted_texts}
        assert drawing.answers[6].casefold() in {text.casefold() for text in opened.accepted_texts}
        for record in (single, multi):
            true = [
                letter for letter, text in zip("ABCD", record.options, strict=True) if _is_true(drawing, record, text)
            ]
            assert list(record.answer) == true
        assert 1 <= len(multi.answer) <= 3
        if opened.topic.startswith("cause of"):
            assert drawing.answers[5] != "N/A"
            assert drawing.shows(opened.topic.removeprefix("cause of "))
    for drawing, image, records in asked:
        for record in records:
            names = {mark.box.label for mark in drawing.drawn.marks if mark.box.label == drawing.answers[6]}
            if record.kind == "multi":
                names = {label for text in record.options if text in FOUND for label in FOUND[text] & drawing.labels}
            if record.kind == "closed" and record.topic != "normality":
                names = FOUND[record.topic.removeprefix("presence of ")] & drawing.labels
            expected = [finding.corners for finding in image.boxes if finding.label in names]
            found = [box.corners for box in record.references if box.label not in drawing.regions]
            assert sorted(found) == sorted(expected)
            assert (record.provenance["references"] in ("findings", "both")) == bool(found)
            if not names:
                assert record.references
    for drawing, _, (record, *_) in asked:
        diagnosis = drawing.answers[6]
        assert (record.lesion, record.modality) == ("" if diagnosis == "Normal" else diagnosis, "xray")
        if diagnosis == "Normal":
            assert record.organ == ""
            continue
        x1, y1, x2, y2 = (int(edge) for edge in record.references[0].corners)
        masks = {f"{side} lung": drawing.chest.lungs[sign] > 0.5 for side, sign in SIGNS_OF.items()}
        counts = {name: (mask & ~drawing.drawn.heart_mask)[y1:y2, x1:x2].sum() for name, mask in masks.items()}
        counts["heart"] = drawing.drawn.heart_mask[y1:y2, x1:x2].sum()
        assert counts[record.organ] == max(counts.values()) if record.organ else max(counts.values()) == 0


def test_stages_are_true_of_the_picture(asked):
    places = {}
    for side in ("right", "left", "bilateral"):
        for answer, words in WORDINGS[3].items():
            one = {"zone": "zone", "base": "base", "hilum": "hilum"}
            many = {"zone": "zones", "base": "bases", "hilum": "hila"}
            for word in words if answer != "N/A" else ():
                text = word.format(side=side, **(many if side == "bilateral" else one))
                places.setdefault(text, set()).add((answer, side))
        lungs = "both lungs" if side == "bilateral" else f"the {side} lung"
        places[f"in {lungs} without a preferred zone"] = {("N/A", side)}
    rules, num_asked = set(), 0
    for drawing, _, records in asked:
        for record in records:
            stages = record.stages
            assert (
                LAST.fullmatch(_sentences(stages.conclusion)[-1])[1]
                == LAST.fullmatch(_sentences(record.thinking)[-1])[1]
            )
            if "asked" in record.facts:
                num_asked += 1
                _check_asked_stages(drawing, record)
                continue
            first, second, third, location, fifth, secondary, diagnosis = drawing.answers
            rules.add((diagnosis, stages.knowledge))
            conclusion, _ = _sentences(stages.conclusion)
            named = re.fullmatch(
                r"(?:This is most consistent with|Together this suggests|The picture fits) (.+)\.", conclusion
            )
            assert NAMES[named[1]] == diagnosis
            if diagnosis == "Normal":
                assert stages.visual == "The lungs are clear and the heart is of normal size."
                assert stages.localisation == "No place stands out; both lungs and the heart are looked over."
                assert [box.label for box in record.references] == ["bilateral lung"]
                continue
            place = re.fullmatch(r"The change lies (.+)\.", stages.localisation)[1]
            assert (location, drawing.drawn.side) in places[place]
            if location.endswith("lung zone"):
                looks = filter(None, map(LOOK.fullmatch, _sentences(record.thinking)))
                zones = {look[1].split()[1] for look in looks if look[1].endswith("lung zone")}
                assert zones <= {location.split()[0].lower()}
            seen, sign = _sentences(stages.visual)
            assert TOLD[re.fullmatch(r"The picture shows (.+)\.", seen)[1]] == (first, second, third, fifth)
            assert SIGNS[sign.removesuffix(".")] == secondary
    assert len({rule for _, rule in rules}) == len(rules)  # a rule belongs to one diagnosis
    assert len(rules) > 20
    assert num_asked > NUM_CASES


def _check_asked_stages(drawing, record):
    """Hold stages that are not about the diagnosis against the references, sentence by sentence."""
    looks = [match.groups() for match in map(LOOK.fullmatch, _sentences(record.thinking)) if match]
    named = record.stages.localisation.removeprefix("The place to look at is the ").removesuffix(".")
    assert re.split(r", the | and the ", named) == list(dict.fromkeys(region for region, *_ in looks))
    assert [
        re.fullmatch(r"In the (.+) I see (.+)\.", sentence).groups() for sentence in _sentences(record.stages.visual)
    ] == list(dict.fromkeys((region, seen) for region, *_, seen in looks))
    assert len(looks) == len(record.references) > 0
    first, _ = _sentences(record.stages.conclusion)
    if record.kind == "multi":
        assert first == "Each option is held against what is seen."
        assert record.stages.knowledge in SIGN_RULES
        assert record.facts["asked"] == "several findings"
    else:
        is_seen = drawing.shows(record.topic.removeprefix("presence of "))
        assert first == f"What is asked about is {'' if is_seen else 'not '}seen there."
        assert record.facts["asked"] in FOUND[record.topic.removeprefix("presence of ")]
        label = next(iter(FOUND[record.topic.removeprefix("presence of ")] & set(KNOWLEDGE)), "")
        assert record.stages.knowledge in KNOWLEDGE.get(label, SIGN_RULES)
    facts = record.facts | {"side": "", "zone": ""}  # those of the diagnosis, which is not what is asked about
    for stage in ("localisation", "visual", "knowledge", "conclusion"):  # nothing that the record's facts contradict
        if "rounded lucencies" not in record.stages.visual:
            claims = find_claims(getattr(record.stages, stage), stage=stage, facts=facts)
            assert claims.contradicting == 0, (stage, getattr(record.stages, stage), record.facts)
