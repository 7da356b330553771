"""A twelfth of the reports of IU X-Ray, as an archive."""

import tarfile


def sample_archive(shared, folder):
    path = folder / "NLMCXR_reports_sample.tgz"
    with tarfile.open(shared / "data" / "iu_xray" / path.name) as whole, tarfile.open(path, "w:gz") as part:
        for member in [member for member in whole if member.isfile()][::12]:
            part.addfile(member, whole.extractfile(member))
    return path
