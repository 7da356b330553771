"""Images: decoding, DICOM, preprocessing and near-duplicates."""
