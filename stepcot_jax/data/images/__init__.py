"""Images: decoding, DICOM, preprocessing, shards and near-duplicates."""
