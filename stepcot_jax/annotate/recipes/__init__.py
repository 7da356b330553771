"""From grounded images to reasoning records: the pipelines of GEMeX-RMCoT, MEDSAGE and MedCLM."""
