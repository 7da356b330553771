"""PadChest-GR, on files written here in its documented format: none of the released ones is at hand."""

import json

import pytest
from answers import name_answers
from data.checked import set_aside_one
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from refusals import refuse

from stepcot_jax.box import Box
from stepcot_jax.data.sources.layouts import read_source
from stepcot_jax.data.sources.padchest_gr import read_master_table

HEADER = (
    "StudyID,ImageID,label,boxes_count,extra_boxes_count,locations,prior_study,progression_status,prior_imageID,"
    "sentence_en,sentence_es,study_is_benchmark,study_is_validation,split,PatientID,patient_is_benchmark,"
    "PatientBirth,PatientSex_DICOM,StudyDate_DICOM,StudyDate,PatientAge,label_group,Year\n"
)


def read_padchest_gr(root, **options):
    return read_source(root, layout="padchest_gr", **options)


def finding(*labels, **changes):
    """A finding with all the documented fields; without labels, of something absent."""
    english, spanish = f"There is {' and '.join(labels) or 'nothing'}.", f"Hay {' y '.join(labels) or 'nada'}."
    fields = {"sentence_en": english, "sentence_es": spanish, "abnormal": bool(labels), "labels": list(labels)}
    return fields | {"boxes": [], "extra_boxes": [], "locations": ["right"], "progression": None} | changes


def study(number, *findings, **changes):
    names = {"StudyID": f"25148803455{number}", "ImageID": f"image_{number}.png", "findings": list(findings)}
    return names | {"PreviousStudyID": None, "PreviousImageID": None} | changes


def write(root, *studies, image_folder="Padchest_GR_files/PadChest_GR", size=(200, 100)):
    (root / "grounded_reports_20240819.json").write_text(json.dumps(studies, ensure_ascii=False))
    folder = root / image_folder
    folder.mkdir(parents=True, exist_ok=True)
    for entry in studies:
        Image.new("I;16", size).save(folder / entry["ImageID"])


def write_table(root, *rows):
    lines = [
        f'{study},image.png,{label},1,0,"[\'right\']",,,,"One, two",Uno,False,False,{split},{patient},False,1950,'
        f"{sex},20100101,2010-01-01,{age},nodule,2010\n"
        for study, label, split, patient, sex, age in rows
    ]
    root.mkdir(exist_ok=True)
    (root / "master_table.csv").write_text(HEADER + "".join(lines))


def test_boxes_sentences_and_labels_of_a_study(tmp_path):
    write(
        tmp_path,
        study(
            1,
            finding("nodule", boxes=[[0.25, 0.5, 0.5, 0.75], [0, 0, 1, 1]], extra_boxes=[[0.1, 0.1, 0.2, 0.2]]),
            finding(" Calcified  granuloma ", boxes=[[0.5, 0.5, 1.0000001, 1]], sentence_en=None),
            {"sentence_en": "No pleural effusion.", "sentence_es": "Sin derrame.", "abnormal": False},
        ),
    )
    collection = read_padchest_gr(tmp_path)
    (case,) = collection.cases
    assert (collection.layout, collection.file) == ("padchest_gr", "grounded_reports_20240819.json")
    assert case.image == "Padchest_GR_files/PadChest_GR/image_1.png"
    assert (case.patient, case.origin) == ("251488034551", "PadChest-GR")
    assert case.report == "There is nodule. Hay  Calcified  granuloma . No pleural effusion."
    assert name_answers(case.answers) == ["Increased opacity", *[None] * 5, "Nodule"]
    assert case.reasoning[-1] == "PadChest-GR labels: Calcified granuloma, nodule."
    assert case.boxes == (
        Box.of_size("nodule", 50, 50, 50, 25, "There is nodule."),
        Box.of_size("nodule", 0, 0, 200, 100, "There is nodule."),
        Box.of_size("Calcified granuloma", 100, 50, 100, 50, "Hay  Calcified  granuloma ."),
    )


def test_without_the_image_there_are_no_boxes_and_a_warning_says_so(tmp_path, caplog):
    write(tmp_path, study(1, finding("nodule", boxes=[[0, 0, 1, 1]])), study(2, finding()))
    for image in (tmp_path / "Padchest_GR_files").rglob("*.png"):
        image.unlink()
    collection = read_padchest_gr(tmp_path, require_images=False)
    assert [case.boxes for case in collection.cases] == [(), ()]
    assert "1 images with boxes have no file: their boxes are ignored" in caplog.text
    refuse(r"record 0: no image 'image_1.png'", read_padchest_gr, tmp_path)


def ends(case):
    named = name_answers(case.answers)
    return named[0], named[-1]


def test_answers_follow_from_the_labels(tmp_path):
    write(
        tmp_path,
        study(1, finding(), finding(labels=["nodule"])),
        study(2, finding("laminar atelectasis"), finding("atelectasis"), finding("scoliosis")),
        study(3, finding("cardiomegaly", "aortic elongation")),
        study(4, finding("pneumothorax"), finding("fibrotic band")),
        study(5, finding("pleural effusion"), finding("pulmonary mass")),
        study(6, finding("hydropneumothorax")),
        study(7, finding("scoliosis")),
        study(8, finding("unheard of")),
        study(9, finding("pneumonia", "infiltrates", abnormal=False), finding("consolidation")),
    )
    single = read_padchest_gr(tmp_path)
    assert {case.patient[-1]: ends(case) for case in single.cases} == {
        "1": ("No abnormality", "Normal"),
        "2": ("Increased opacity", "Atelectasis"),
        "3": (None, "Cardiomegaly"),
        "4": ("Mixed", "Pneumothorax"),
        "9": ("Increased opacity", "Infiltration"),
    }
    assert name_answers(single.cases[0].answers)[1:6] == ["N/A"] * 5
    assert [aside.record for aside in single.set_aside] == [4, 5, 6, 7]
    assert "2 diagnoses (Effusion, Mass) instead of one (single_label)" in single.set_aside[0].reason
    assert "the abnormal labels have none of Normal" in single.set_aside[2].reason
    several = read_padchest_gr(tmp_path, single_label=False)
    assert [ends(case) for case in several.cases[4:6]] == [("Increased opacity", None), ("Mixed", None)]
    assert [aside.record for aside in several.set_aside] == [6, 7]


@pytest.mark.parametrize("folder", ["", "master_table.csv"])
def test_patients_come_from_the_master_table(tmp_path, folder, caplog):
    write(tmp_path, study(1, finding()), study(2, finding("mass")), study(3, finding("mass")))
    if folder:  # as the released archive unpacks
        (tmp_path / folder).mkdir()
    write_table(
        tmp_path / folder,
        ("251488034551", "nodule", "train", "P1", "F", "61"),
        ("251488034551", "mass", "train", "P1", "F", "61"),
        ("251488034552", "mass", "test", "P1", "?", "many"),
    )
    collection = read_padchest_gr(tmp_path, on_bad_record="skip")
    assert [(case.patient, case.sex, case.age) for case in collection.cases] == [("P1", "F", 61.0), ("P1", "", None)]
    assert "record 2: StudyID: the study is not in the master table" in collection.set_aside[0].reason
    assert not caplog.text


BAD = [
    ({"StudyID": None}, "StudyID: Expected `int | str`, got `null`"),
    ({"StudyID": " "}, "StudyID: is empty; a study's identifier is required"),
    ({"ImageID": "../x.png"}, "is not a file name without folders"),
    ({"ImageID": "image_1.png"}, "has the same image as record 0"),
    ({"findings": []}, "findings: none; at least one"),
    ({"findings": [finding("mass", boxes=[[0, 0, 1]])]}, "findings[0].boxes[0]: "),
    (
        {"findings": [finding(), finding("mass", boxes=[[0, 0, 1, 1], [1, 0, 1, 1]])]},
        "findings[1].boxes[1]: box [1.0, 0.0",
    ),
    ({"findings": [finding("mass", extra_boxes=[[0, 0, 512, 512]])]}, "as fractions from 0 to 1"),
    ({"findings": [finding("mass", boxes=[[-0.1, 0, 1, 1]])]}, "box [-0.1, 0.0, 1.0, 1.0]"),
]


@pytest.mark.parametrize(("changes", "message"), BAD)
def test_bad_studies(tmp_path, changes, message):
    write(tmp_path, study(1, finding("mass")), study(2, finding("mass")))
    path = tmp_path / "grounded_reports_20240819.json"
    path.write_text(json.dumps([study(1, finding("mass")), study(2, finding("mass"), **changes)]))
    cases, said = set_aside_one(read_padchest_gr, tmp_path, 1, "record 1: ", message)
    assert (len(cases), said.startswith(f"{path}, record 1 ")) == (1, True)
    assert "There is" not in said  # no report in messages


def test_roots_and_master_tables_that_cannot_be_used(tmp_path):
    refuse("has no grounded_reports", read_padchest_gr, tmp_path)
    (tmp_path / "grounded_reports_20240819.json").write_text('[{"StudyID": "1", "ImageID"')
    refuse("grounded_reports_20240819", read_padchest_gr, tmp_path)
    (tmp_path / "grounded_reports_1.json").write_text("[]")
    refuse(r"grounded_reports_1\.json, grounded_reports_20240819\.json", read_padchest_gr, tmp_path)
    first, other = ("1", "mass", "train", "P1", "F", "61"), ("1", "mass", "train", "P2", "F", "61")
    nobody = ("1", "mass", "train", "", "F", "61")
    bad = {
        (nobody,): "row 2: study and patient are required",
        (first, other): "row 3: the study has another patient than",
    }
    for rows, message in bad.items():
        write_table(tmp_path, *rows)
        refuse(message, read_master_table, tmp_path / "master_table.csv")
    (tmp_path / "master_table.csv").write_text("StudyID,Patient\n1,2\n")
    refuse(r"header \['StudyID', 'Patient'\] lacks PatientID", read_master_table, tmp_path / "master_table.csv")


FRACTIONS = st.lists(st.floats(0, 1), min_size=2, max_size=2, unique=True).map(sorted)


@given(across=FRACTIONS, down=FRACTIONS, size=st.tuples(st.integers(1, 60), st.integers(1, 60)))
def test_boxes_lie_in_the_image_and_keep_their_fractions(tmp_path_factory, across, down, size):
    root, corners = tmp_path_factory.mktemp("boxes"), [across[0], down[0], across[1], down[1]]
    write(root, study(1, finding("mass", boxes=[corners])), size=size, image_folder="images")
    (box,) = read_padchest_gr(root).cases[0].boxes
    assert min(box.x1, box.y1) >= 0
    assert [edge / side for edge, side in zip(box.corners, size * 2, strict=True)] == pytest.approx(corners)
