"""Structured reports: what they say, whose they are, what is refused; messages quote no patient."""

import dataclasses
import io
import logging
import shutil
import subprocess
import time

import pytest

pydicom = pytest.importorskip("pydicom")
highdicom = pytest.importorskip("highdicom")

from predict import dicom_reports as made
from pydicom import uid
from pydicom.dataset import Dataset

from stepcot_jax.chain import DEFAULT_CHAIN, Step
from stepcot_jax.data.images.dicom import read_header
from stepcot_jax.extras.dicom_sr import NOT_A_DIAGNOSIS, SCHEME, make_report
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reading.readings import ChainReading, StepAnswer


def test_a_report_says_every_answer_with_what_limits_it():
    report = made.read_back(made.report_on())
    groups = made.groups_of(report)
    assert [group.tracking_identifier for group in groups] == [step.name for step in DEFAULT_CHAIN.steps]
    for group, step in zip(groups, DEFAULT_CHAIN.steps, strict=True):
        (certainty,) = group.get_measurements()
        assert (certainty.name.value, certainty.unit.value) == ("111012", "%")
        assert certainty.value == pytest.approx(200 / (step.num_answers + 1), abs=0.006)
        coded = [(item.name.meaning, item.value.meaning) for item in group.get_qualitative_evaluations()][1:]
        best, first = step.options[-1], step.options[0]
        named = [(step.name, best), *(("in the answer set", option) for option in (best, first))]
        assert coded == [*named, ("at or above its operating point", best)]
        texts = dict(made.texts_of(group[0].ContentSequence))
        assert texts["question"] == step.question
        assert texts["figures of the operating points"] == f"{best} (sensitivity 80 %, specificity 70 %)"
        assert texts["Algorithm Parameters"] == f"SHA-256 of the weights: {'ab' * 32}"
        assert group.source_images[0].referenced_sop_instance_uid == made.UIDS["SOPInstanceUID"]
    texts = made.texts_of(report.ContentSequence)
    assert {
        "Comment": NOT_A_DIAGNOSIS,
        "Summary": made.make_reading().paragraph,
        "Device Observer Model Name": "stepcot_jax student 1.2.3",
        "Device Observer Serial Number": "ab" * 32,
        "answer sets": "such sets hold the true answer in 90 % of all cases",
    }.items() <= dict(texts).items()
    assert "Not a diagnosis" in NOT_A_DIAGNOSIS
    warned = [text for name, text in texts if name == "warning"]
    assert warned == list(made.make_reading().warnings)
    assert len(warned) == 2
    verdicts = {item.name.meaning: item.value.meaning for item in report.ContentSequence if item.ValueType == "CODE"}
    assert verdicts["outside of what it was trained on"] == "Yes"


def test_a_report_belongs_to_the_images_study_is_unverified_and_has_codes_of_the_standards():
    report = made.read_back(made.report_on())
    assert report.StudyInstanceUID == made.UIDS["StudyInstanceUID"]
    assert report.SeriesInstanceUID != made.UIDS["SeriesInstanceUID"]
    image = (*(made.UIDS[f"{level}InstanceUID"] for level in ("Study", "Series", "SOP")), made.IMAGE_CLASS)
    assert report.get_evidence() == [image]
    assert {keyword: str(report[keyword].value) for keyword in made.PATIENT if keyword != "Manufacturer"} == {
        keyword: value for keyword, value in made.PATIENT.items() if keyword != "Manufacturer"
    }
    flags = (report.CompletionFlag, report.VerificationFlag, report.PreliminaryFlag, report.ContentQualification)
    assert flags == ("COMPLETE", "UNVERIFIED", "PRELIMINARY", "RESEARCH")
    assert (report.Modality, report.SOPClassUID) == ("SR", uid.ComprehensiveSRStorage)
    assert "VerifyingObserverSequence" not in report
    schemes, report = set(), made.report_on()
    report.walk(lambda _, element: schemes.add(element.value) if element.keyword == "CodingSchemeDesignator" else None)
    assert schemes == {"DCM", "UCUM", "SCT", "LN", "RFC5646", SCHEME}
    snomed = [item.value for item in report.content[0].ContentSequence if item.name.meaning.startswith("outside")]
    assert [code.value for code in snomed] == ["373066001"]  # Yes
    assert [item.CodingSchemeDesignator for item in report.CodingSchemeIdentificationSequence] == [SCHEME]


def test_the_uid_is_of_the_content_and_not_of_the_time():
    first, reading = made.report_on(), made.make_reading()
    time.sleep(1.1)
    again = made.report_on()
    assert again.SOPInstanceUID == first.SOPInstanceUID == again.file_meta.MediaStorageSOPInstanceUID
    assert (again.ContentDate, again.ContentTime) > (first.ContentDate, first.ContentTime)
    reports = [
        first,
        made.report_on(dataclasses.replace(reading, rule="another")),
        made.report_on(PatientID="another"),
        made.report_on(SOPInstanceUID="1.2.3.9"),
        make_report(reading, read_header(made.dicom(), name="x"), dataclasses.replace(made.NETWORK, digest="cd" * 32)),
    ]
    for level in ("SOP", "Series"):
        uids = {uid.UID(report[f"{level}InstanceUID"].value) for report in reports}
        assert len(uids) == 5
        assert all(found.is_valid for found in uids)
    # Each is instance 1 of a series of its own, so that no number depends on what was read before.
    assert (again.SeriesInstanceUID, again.InstanceNumber) == (first.SeriesInstanceUID, 1)


@pytest.mark.parametrize(
    ("elements", "words"),
    [
        ({"StudyInstanceUID": None}, "StudyInstanceUID: missing"),
        ({"SOPInstanceUID": ""}, "SOPInstanceUID: missing"),
        ({"StudyInstanceUID": "1.MARKER"}, "StudyInstanceUID: is no UID"),
        ({"SOPClassUID": "1.2.3.4"}, "cannot be copied"),
        ({"SOPClassUID": None}, "SOPClassUID: missing"),
        ({"PatientSex": "MARKER"}, "PatientSex: is not as in DICOM"),
        ({"PatientBirthDate": "19994711"}, "PatientBirthDate: is not as in DICOM"),
        ({"StudyTime": "4711MARKER"}, "StudyTime: is not as in DICOM"),
        ({"PatientName": "MARKER^Jörg"}, "SpecificCharacterSet: does not say"),
        ({"PatientName": b"MARKER\x92Jane"}, "SpecificCharacterSet: does not say"),  # Windows-1252
        ({"PatientName": "Ж4711".encode("cp1251"), "SpecificCharacterSet": "ISO_IR 6"}, "SpecificCharacterSet"),
        ({"InstitutionName": "MARKER ü".encode()}, "SpecificCharacterSet: does not say"),
    ],
)
def test_what_cannot_be_filed_is_refused_without_a_value(elements, words, caplog, capfd):
    with caplog.at_level(logging.DEBUG), pytest.raises(BadInput, match=f"^x.dcm: .*{words}") as caught:
        made.report_on_bytes(**elements)
    assert caught.value.__context__ is None
    captured = capfd.readouterr()
    for marker in ("MARKER", "4711", "19991231", "Jörg"):
        assert marker not in str(caught.value) + caplog.text + captured.out + captured.err


@pytest.mark.parametrize(
    ("name", "charset", "syntax"),
    [
        ("Müller^Jörg", "ISO_IR 100", uid.ImplicitVRLittleEndian),
        ("Yamada^Tarou=山田^太郎=やまだ^たろう", ["", "ISO 2022 IR 87"], uid.ExplicitVRLittleEndian),
        ("Лужин^Фёдор", "ISO_IR 144", uid.ExplicitVRBigEndian),
        ("王^小東", "GB18030", uid.ExplicitVRLittleEndian),
        ("Ωmega^λ", "ISO_IR 192", uid.ImplicitVRLittleEndian),
    ],
)
def test_names_keep_their_letters_in_utf_8(name, charset, syntax):
    nested = Dataset()
    nested.PatientID, nested.TypeOfPatientID = name[:16].split("=")[0], "TEXT"
    elements = {"SpecificCharacterSet": charset, "PatientName": name, "OtherPatientIDsSequence": [nested]}
    report = made.read_back(made.report_on(syntax=syntax, **elements))
    assert report.SpecificCharacterSet == "ISO_IR 192"
    assert str(report.PatientName) == name
    assert report.OtherPatientIDsSequence[0].PatientID == nested.PatientID


def test_long_and_hostile_texts_fit():
    steps = (Step("A\\B" * 30, "Q " * 2000, ("one", "\x1b[2J" + "x" * 100)), Step("Two", "Ω?", ("né", "no\\yes")))
    report = made.read_back(made.report_on(made.make_reading(steps=steps)))
    groups = made.groups_of(report)
    answers = [group.get_qualitative_evaluations()[1] for group in groups]
    assert answers[0].name.meaning == ("A/B" * 30)[:61] + "..."
    assert answers[0].value.meaning.startswith("\\x1b[2J".replace("\\", "/") + "xxx")
    assert len(answers[0].value.meaning) == 64
    texts = [dict(made.texts_of(group[0].ContentSequence)) for group in groups]
    assert texts[0]["answer in full"] == "\\x1b[2J" + "x" * 100
    assert texts[0]["question"].rstrip() == steps[0].question.rstrip()
    assert (texts[1]["answer in full"], answers[1].value.meaning) == ("no\\yes", "no/yes")
    assert len({each.value.value for each in answers}) == 2


def test_an_answer_of_a_person_is_said_to_be_one():
    reading = made.make_reading(given=(2,))
    groups = made.groups_of(made.read_back(made.report_on(reading)))
    told = dict(made.texts_of(groups[2][0].ContentSequence))
    assert told["answer given by a person"] == reading.steps[2].describe_certainty()
    assert told["answer given by a person"].startswith("given (network: ")
    assert "answer given by a person" not in dict(made.texts_of(groups[1][0].ContentSequence))
    # Not an answer of the algorithm, whose family is the first evaluation of the others.
    assert [each.name.meaning for each in groups[2].get_qualitative_evaluations()] == ["Radiographic pattern"]
    measured = [group.get_measurements()[0].name.meaning for group in groups[1:3]]
    assert measured == ["Certainty of Finding", "network's probability of the given answer"]


def test_a_plain_reading_has_a_plain_report():
    step = DEFAULT_CHAIN.steps[0]
    plain = ChainReading("x", "teacher", False, None, (StepAnswer(step, 0, (0.5, 0.3, 0.2), (), None),))
    report = made.read_back(made.report_on(plain, **dict.fromkeys(made.PATIENT)))
    names = {item.name.meaning for item in report.ContentSequence}
    assert not {"warning", "answer sets", "outside of what it was trained on"} & names
    assert "no gate stored" in dict(made.texts_of(report.ContentSequence))["training data and distance to them"]
    for keyword in ("PatientName", "PatientID", "PatientBirthDate", "PatientSex", "StudyDate", "AccessionNumber"):
        assert not report[keyword].value


def coded(**elements):
    item = Dataset()
    item.CodeValue, item.CodingSchemeDesignator, item.CodeMeaning = "1", "99X", "a code"
    for keyword, value in elements.items():
        setattr(item, keyword, value)
    item.private_block(0x0011, "MARKER", create=True).add_new(1, "LO", "MARKER private")
    return item


@pytest.mark.parametrize("syntax", [uid.ImplicitVRLittleEndian, uid.ExplicitVRBigEndian])
def test_items_of_sequences_come_without_people_comments_and_private_elements(syntax):
    """Whatever the depth; of code sequences only what DICOM's code macro names (PS3.3, table 8.8-1)."""
    inner = coded(PatientName="MARKER^inner", LongCodeValue="kept", MappingResourceName="kept too")
    code = coded(EquivalentCodeSequence=[inner], PatientComments="MARKER", PatientID="MARKER", StudyID="MARKER")
    issuer = coded(UniversalEntityID="1.2.3", UniversalEntityIDType="ISO")
    issuer.AssigningJurisdictionCodeSequence = [coded(PatientID="MARKER")]
    other = Dataset()
    other.PatientID, other.TypeOfPatientID = "another id", "TEXT"
    other.PatientName, other.PatientComments, other.InstitutionName = "MARKER^Jane", "MARKER", "MARKER clinic"
    other.IssuerOfPatientIDQualifiersSequence = [issuer]
    other.private_block(0x0013, "MARKER", create=True).add_new(1, "SQ", [coded()])
    doctor = Dataset()
    doctor.InstitutionCodeSequence = [coded()]
    doctor.PersonIdentificationCodeSequence = [coded(CodeMeaning="MARKER^Doctor")]  # a name, by PS3.3 table 10-1
    doctor.PersonAddress, doctor.PersonTelephoneNumbers, doctor.InstitutionName = "MARKER", "MARKER", "MARKER"
    sequences = {"OtherPatientIDsSequence": [other], "ProcedureCodeSequence": [code]}
    sequences["ReferringPhysicianIdentificationSequence"] = [doctor]
    report = made.report_on(**dict.fromkeys(made.PATIENT, ""), syntax=syntax, **sequences)
    file = io.BytesIO()
    pydicom.dcmwrite(file, report, enforce_file_format=True)
    assert b"MARKER" not in file.getvalue()
    report = made.read_back(report)
    kept = report.ProcedureCodeSequence[0]
    plain = {"CodeValue", "CodingSchemeDesignator", "CodeMeaning"}
    assert {element.keyword for element in kept} == plain | {"EquivalentCodeSequence"}
    assert kept.EquivalentCodeSequence[0].LongCodeValue == "kept"
    assert kept.EquivalentCodeSequence[0].MappingResourceName == "kept too"
    identifiers = report.OtherPatientIDsSequence[0]
    assert (identifiers.PatientID, identifiers.TypeOfPatientID) == ("another id", "TEXT")
    issuer = identifiers.IssuerOfPatientIDQualifiersSequence[0]
    assert issuer.UniversalEntityID == "1.2.3"
    assert {element.keyword for element in issuer.AssigningJurisdictionCodeSequence[0]} == plain
    doctor = report.ReferringPhysicianIdentificationSequence[0]
    assert [element.keyword for element in doctor] == ["InstitutionCodeSequence"]
    assert doctor.InstitutionCodeSequence[0].CodeValue == "1"


@pytest.mark.parametrize("kind", [b"OB", b"UN", b"UT"])
def test_a_sequence_that_is_written_as_another_type_is_not_copied(kind):
    """pydicom leaves its items as bytes, in which nobody would see the names."""
    other = Dataset()
    other.PatientID, other.PatientName = "1", "MARKER^Jane"
    content = made.dicom(OtherPatientIDsSequence=[other] * 3000, **dict.fromkeys(made.PATIENT, ""))
    assert content.count(b"\x10\x00\x02\x10SQ") == 1
    content = content.replace(b"\x10\x00\x02\x10SQ", b"\x10\x00\x02\x10" + kind)
    report = make_report(made.make_reading(), read_header(content, name="x.dcm"), made.NETWORK)
    file = io.BytesIO()
    pydicom.dcmwrite(file, report, enforce_file_format=True)
    assert b"MARKER" not in file.getvalue()


@pytest.mark.skipif(shutil.which("dciodvfy") is None, reason="needs dciodvfy (Debian: dicom3tools)")
@pytest.mark.parametrize("given", [(), (0,)])
def test_dciodvfy_finds_no_error(given, tmp_path):
    path = tmp_path / "report.dcm"
    pydicom.dcmwrite(path, made.report_on(made.make_reading(given=given)), enforce_file_format=True)
    done = subprocess.run(["dciodvfy", str(path)], capture_output=True, text=True)
    told = [line for line in (done.stdout + done.stderr).splitlines() if f"<{SCHEME}>" not in line]
    assert (told, done.returncode) == (["ComprehensiveSR"], 0)
