"""IU X-Ray: the real archive gives what is in its bytes, and no archive, file or XML can do harm."""

import collections
import gzip
import hashlib
import io
import os
import re
import tarfile
import tracemalloc

import pytest
from PIL import Image
from refusals import refuse

from stepcot_jax.chain import DEFAULT_CHAIN, NOT_ANNOTATED
from stepcot_jax.data.records.records import SetAside
from stepcot_jax.data.sources import iu_xray
from stepcot_jax.data.sources.iu_xray import (
    decide_projections,
    is_iu_xray,
    name_image,
    read_projection_list,
    read_report,
    read_reports,
)
from stepcot_jax.data.sources.layouts import read_source
from stepcot_jax.host.errors import BadInput

ARCHIVE = "data/iu_xray/NLMCXR_reports_sample.tgz"
FRONTAL, LATERAL = "f0p0k338", "f0p0k518"


def image_xml(name, edges="", *, figure="F1", url=None):
    url = f"/hadoop/storage/radiology/extract/{name}.jpg" if url is None else url
    return (
        f'<parentImage id="{name}"><figureId>{figure}</figureId><caption>PA and lateral. </caption><panel>'
        f"<url>{url}</url><EdgeHistogram>{edges}</EdgeHistogram></panel></parentImage>"
    )


def report_xml(uid="CXR1", *, images="", mesh="<major>normal</major>", findings="Clear <b>lungs</b>.", head=""):
    return (
        f'<?xml version="1.0" encoding="utf-8"?>{head}<eCitation><uId id="{uid}"/><licenseURL>x</licenseURL>'
        f'<Abstract><AbstractText Label="COMPARISON"/><AbstractText Label="INDICATION"> Cough, XXXX. </AbstractText>'
        f'<AbstractText Label="FINDINGS">{findings}</AbstractText>'
        f'<AbstractText Label="IMPRESSION">Normal.</AbstractText></Abstract>'
        f"<MeSH>{mesh}<automatic>lung</automatic></MeSH>{images}</eCitation>"
    ).encode()


TWO = image_xml("CXR1_IM-0001-1001", LATERAL) + image_xml("CXR1_IM-0001-2001", FRONTAL, figure="F2")


def entry(name, content=b"", **fields):
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


def write_tar(path, entries, mode="w:gz"):
    with tarfile.open(path, mode) as archive:
        for info, content in entries:
            archive.addfile(info, io.BytesIO(content))
    return path


@pytest.fixture
def coding(monkeypatch):
    """A coding that gives as its labels how many codes there were; the real one has tests of its own."""
    monkeypatch.setattr(iu_xray, "read_coding", lambda mesh: (len(mesh) - 1, *[NOT_ANNOTATED] * 6))


@pytest.fixture(scope="module")
def raw(shared):
    """The real report files as bytes, by the plainest way to them."""
    with tarfile.open(shared / ARCHIVE) as archive:
        return [archive.extractfile(info).read() for info in archive.getmembers() if info.isfile()]


@pytest.fixture(scope="module")
def reports(shared):
    return list(read_reports(shared / ARCHIVE))


def in_bytes(pattern, raw):
    return sum(len(re.findall(pattern, content, re.DOTALL)) for content in raw)


def test_real_counts(raw, reports):
    assert not any(isinstance(report, SetAside) for report in reports)
    assert len({report.uid for report in reports}) == len(reports) == in_bytes(rb'<uId id="CXR\d+"/>', raw) == 1935
    for field, count in (("FINDINGS", 1680), ("IMPRESSION", 1914)):
        with_text = in_bytes(rb'<AbstractText Label="' + field.encode() + rb'">\s*[^<\s]', raw)
        assert sum(bool(getattr(report, field.lower())) for report in reports) == with_text == count
    assert sum(len(report.images) for report in reports) == in_bytes(rb"<parentImage ", raw) == 3673
    assert sum(not report.images for report in reports) == sum(b"<parentImage" not in content for content in raw) == 48
    assert sum(len(report.mesh) for report in reports) == in_bytes(rb"<major>\s*[^<\s]", raw)
    counts = collections.Counter((image.projection, image.decided_by) for report in reports for image in report.images)
    expected = {("frontal", "descriptors"): 1812, ("lateral", "descriptors"): 1717, ("undecided", ""): 98}
    assert counts == expected | {("frontal", "order"): 23, ("lateral", "order"): 23}
    decided = [report for report in reports if len(report.images) == 2 and report.images[0].decided_by]
    first = sum(report.images[0].projection == "frontal" for report in decided) / len(decided)
    assert 0.88 < first < 0.92  # what FIRST_OF_TWO says


def test_real_collection(shared, coding):
    collection = read_source(shared / "data" / "iu_xray", require_images=False)
    assert (collection.layout, collection.chain) == ("iu_xray", DEFAULT_CHAIN)
    reasons = ("lateral", "no image", "neither the image's descriptors")
    counts = collections.Counter(next(name for name in reasons if name in item.reason) for item in collection.set_aside)
    assert [counts[name] for name in reasons] == [1740, 48, 98]
    assert len({case.image for case in collection.cases}) == len(collection.cases) == 1835
    assert all(re.fullmatch(r"CXR\d+", case.patient) for case in collection.cases)
    assert {case.view for case in collection.cases} == {"PA", "AP", ""}


BAD_FILES = [
    *((b"", "not XML"), (b'<?xml version="1.0" encoding="klingon"?><eCitation/>', "not XML")),
    *((b"<eCitation/>", "uId: ''"), (report_xml("../../etc"), "uId: '../../etc'")),
    (report_xml(images=image_xml("../x")), "id of a parentImage: '../x'"),
    *((report_xml(findings="&other;"), "not XML"), (report_xml(head="<!DOCTYPE eCitation>"), "document type")),
    *((report_xml().replace(b"FINDINGS", b"FINDINGZ"), "['FINDINGZ']"), (b"<eCitation>" * 60, "more than 50 deep")),
]


@pytest.mark.parametrize(("content", "found"), BAD_FILES)
def test_bad_files(content, found):
    assert found in refuse("", read_report, content)


def test_no_entities(tmp_path):
    """Neither a billion laughs nor another file gets into a report, and neither takes memory."""
    secret = tmp_path / "secret"
    secret.write_text("TOP-SECRET")
    laughs = '<!ENTITY a0 "ha">' + "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 10))
    for declared, used in (
        (laughs, "&a9;"),
        (f'<!ENTITY a SYSTEM "file://{secret}">', "&a;"),
        (f'<!ENTITY % p SYSTEM "file://{secret}"> %p;', ""),
    ):
        for head in (f"<!DOCTYPE eCitation [{declared}]>", f'<!DOCTYPE eCitation SYSTEM "file://{secret}">'):
            tracemalloc.start()
            message = refuse("document type declaration", read_report, report_xml(head=head, findings=used))
            assert tracemalloc.get_traced_memory()[1] < 1_000_000
            tracemalloc.stop()
            assert "TOP-SECRET" not in message


def test_projections():
    frontal, lateral, unknown = {"EdgeHistogram": FRONTAL}, {"EdgeHistogram": LATERAL}, {}
    assert (decide_projections([]), decide_projections([frontal])) == ((), (("frontal", "descriptors"),))
    assert decide_projections([lateral]) == (("lateral", "descriptors"),)
    assert decide_projections([unknown]) == (("undecided", ""),)
    assert decide_projections([unknown, unknown]) == (("frontal", "order"), ("lateral", "order"))
    assert decide_projections([unknown, frontal]) == (("undecided", ""), ("undecided", ""))
    assert decide_projections([frontal, unknown]) == (("frontal", "descriptors"), ("lateral", "descriptors"))
    assert [side for side, _ in decide_projections([frontal, unknown, lateral])] == ["frontal", "undecided", "lateral"]
    listed = decide_projections([lateral, lateral], listed=["frontal", None])
    assert (listed[0], listed[1][1]) == (("frontal", "list"), "order")


def test_projection_list(tmp_path):
    path = tmp_path / "indiana_projections.csv"
    rows = ["\ufeffuid,filename,projection", "1,1_IM-0001-1001.dcm.png,Frontal", "1,1_IM-0001-2001.dcm.png,Lateral"]
    path.write_text("\r\n".join([*rows, "1,1_IM-0001-3001.dcm.png, frontal\r\n"]), encoding="utf-8")
    report = read_report(report_xml(images=TWO + image_xml("CXR1_1_IM-0001-3001")), listed=read_projection_list(path))
    sides = [(image.projection, image.decided_by) for image in report.images]
    assert sides == [(side, "list") for side in ("frontal", "lateral", "frontal")]
    assert name_image("CXR7_IM-2263-1001.jpeg") == "7_IM-2263-1001"
    bad = {
        "": "is empty",
        "x,oblique\n": "row 2: projection 'oblique'",
        "x,Frontal\nx.png,Lateral\n": "row 3: 'x' already",
    }
    for content, found in bad.items():
        path.write_text(content and f"filename,projection\n{content}")
        refuse(f"{path}: {found}", read_projection_list, path)


def test_folder_and_archives_agree(tmp_path):
    contents = {"1.xml": report_xml("CXR1"), "2.xml": b"<broken", "3.XML": report_xml("CXR3"), "readme.txt": b""}
    folder = tmp_path / "loose"
    folder.mkdir()
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    entries = [entry("ecgen-radiology", type=tarfile.DIRTYPE)]
    entries += [entry(f"ecgen-radiology/{name}", content) for name, content in contents.items()]
    sources = [folder, write_tar(tmp_path / "a.tgz", entries), write_tar(tmp_path / "a.tar", entries, mode="w")]
    for source in sources:
        assert is_iu_xray(source)
        first, broken, last = read_reports(source)
        assert (first.uid, last.uid) == ("CXR1", "CXR3")
        assert isinstance(broken, SetAside)
        assert broken.record == 1
        assert "2.xml: is not XML" in broken.reason


def test_hostile_entries(tmp_path, monkeypatch):
    """Links, devices and large files are set aside; a path that escapes is only a name."""
    monkeypatch.chdir(tmp_path)
    good = report_xml("CXR9")
    path = write_tar(
        tmp_path / "a.tgz",
        [
            *(entry("../../escaped.xml", good), entry("link.xml", type=tarfile.SYMTYPE, linkname="/etc/passwd")),
            entry("hard.xml", type=tarfile.LNKTYPE, linkname="../../escaped.xml"),
            *(entry("device.xml", type=tarfile.CHRTYPE), entry("pipe.xml", type=tarfile.FIFOTYPE)),
            *(entry("large.xml", bytes(iu_xray.MAX_REPORT_BYTES + 1)), entry("again.xml", good)),
            entry("._mac.xml", b"x"),
        ],
    )
    first, *others = read_reports(path)
    assert (first.uid, [aside.record for aside in others]) == ("CXR9", [1, 2, 3, 4, 5, 6])
    assert sum("is a link, a device" in aside.reason for aside in others) == 4
    assert "large.xml: has 1000001 bytes" in others[4].reason
    assert "again.xml: uId: 'CXR9' occurs twice" in others[5].reason
    assert list(tmp_path.iterdir()) == [path]


def test_hostile_folder(tmp_path):
    outside = tmp_path / "outside.xml"
    outside.write_bytes(report_xml("CXR5"))
    folder = tmp_path / "ecgen-radiology"
    folder.mkdir()
    (folder / "1.xml").symlink_to(outside)
    os.mkfifo(folder / "2.xml")
    (folder / "3.xml").mkdir()
    (folder / "4.xml").write_bytes(b"x" * (iu_xray.MAX_REPORT_BYTES + 1))
    (folder / "5.xml").write_bytes(report_xml("CXR5"))
    found = list(read_reports(tmp_path))
    assert [isinstance(each, SetAside) for each in found] == [True] * 4 + [False]
    assert "more than 1000000" in found[3].reason


def pax_header(num_bytes):
    """A tar header that says that so many bytes of extended header follow."""
    info = tarfile.TarInfo("header")
    info.type, info.size = tarfile.XHDTYPE, num_bytes
    return info.tobuf(tarfile.USTAR_FORMAT)


def leads_back():
    """An archive of which an entry claims to be shorter than nothing, so that its end is its start."""
    record = b"14 size=-1024\n"
    block = pax_header(len(record)) + record.ljust(512, b"\0")
    return block + tarfile.TarInfo("1.xml").tobuf(tarfile.USTAR_FORMAT) + bytes(1024)


def bad_archives():
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as archive:
        for number in range(5):
            content = report_xml(f"CXR{number}", findings=hashlib.sha512(bytes([number])).hexdigest() * 9)
            archive.addfile(entry(f"{number}.xml", content)[0], io.BytesIO(content))
    tar = whole.getvalue()
    second = tar.index(b"1.xml" + bytes(95))
    assert second > 0
    packed = gzip.compress(tar)
    return {
        "empty": b"",
        "gzip of text": gzip.compress(b"Dear reader,\n" * 100),
        "gzip checksum": packed[:-8] + bytes(8),
        "gzip bomb behind the end": gzip.compress(tar + bytes(2**20)),
        "gzip damaged": packed[:800] + bytes(20) + packed[820:],
        "tar cut in a file": tar[: 512 + 100],
        "tar damaged header": tar[:second] + b"\xff" * 512 + tar[second + 512 :],
        "header of 8 GB": gzip.compress(pax_header(8 * 2**30 - 1) + bytes(10_000)),
        "headers of headers": pax_header(0) * 3000,
        "leads back": leads_back(),
        "zip": b"PK\x03\x04" + bytes(100),
    }


@pytest.mark.parametrize("kind", bad_archives())
def test_bad_archives(tmp_path, monkeypatch, kind):
    path = tmp_path / "a.tgz"
    path.write_bytes(bad_archives()[kind])
    if "bomb" in kind:
        monkeypatch.setattr(iu_xray, "MAX_ARCHIVE_BYTES", 500_000)
    tracemalloc.start()
    message = refuse("", lambda: list(read_reports(path)))
    assert tracemalloc.get_traced_memory()[1] < 5_000_000
    tracemalloc.stop()
    assert str(path) in message
    assert "expected" in message


def test_archive_bomb(tmp_path, monkeypatch):
    """Files that are passed over count as well, and end the reading before they are unpacked."""
    path = tmp_path / "a.tgz"
    content = bytes(3_000_000)
    write_tar(path, [entry("1.xml", report_xml()), entry("big.bin", content), entry("2.xml", report_xml("CXR2"))])
    assert len(list(read_reports(path))) == 2
    monkeypatch.setattr(iu_xray, "MAX_ARCHIVE_BYTES", 2_000_000)
    refuse("more than 2000000 bytes unpacked", lambda: list(read_reports(path)))
    monkeypatch.setattr(iu_xray, "MAX_REPORTS", 2)
    with pytest.raises(BadInput, match="more than 2 entries"):
        list(read_reports(write_tar(path, [entry(f"{number}.xml", report_xml()) for number in range(3)])))


NAMES = ("CXR1_IM-0001-2001", "CXR2_IM-0002-1001", "CXR2_IM-0002-2001")


def make_root(tmp_path, folder, ending):
    (tmp_path / folder).mkdir()
    for name in NAMES:
        Image.new("L", (4, 4)).save(tmp_path / folder / f"{name}{ending}")
    three = [(NAMES[1], FRONTAL), (NAMES[2], FRONTAL), ("CXR2_IM-0002-3001", "")]
    codes, images = "<major>Nodule</major><major>Mass</major>", "".join(image_xml(*each) for each in three)
    reports = [report_xml(images=TWO), report_xml("CXR2", images=images, mesh=codes), report_xml("CXR3"), b"<broken"]
    write_tar(tmp_path / "NLMCXR_reports.tgz", [entry(f"{n}.xml", content) for n, content in enumerate(reports, 1)])
    return tmp_path


@pytest.mark.parametrize(("folder", "ending"), [("NLMCXR_png", ".png"), ("images", ".jpg")])
def test_collection(tmp_path, coding, folder, ending):
    root = make_root(tmp_path, folder, ending)
    collection = read_source(root, on_bad_record="skip")
    assert [case.image for case in collection.cases] == [f"{folder}/{name}{ending}" for name in NAMES]
    assert [(case.patient, case.answers[0]) for case in collection.cases] == [("CXR1", 0), ("CXR2", 1), ("CXR2", 1)]
    first = collection.cases[0]
    assert (first.report, first.view) == ("FINDINGS: Clear lungs. IMPRESSION: Normal.", "PA")
    asides = [(aside.record, aside.patient_id) for aside in collection.set_aside]
    assert asides == [(0, "CXR1"), (4, "CXR2"), (5, "CXR3"), (6, "")]
    refuse(r"NLMCXR_reports\.tgz, record 6 .*4\.xml: is not XML", read_source, root)
