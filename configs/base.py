"""Every key of a run with its default; other configs change only what differs.

The defaults are the published sizes and rates (paper: Appendix D) on the phantom, with an image encoder that is
trained along because no pretrained one is given. Start a run from another config, such as quickstart.
"""

from ml_collections import config_dict

from stepcot_jax.chain import PUBLISHED_STEPS


def get_config():
    config = config_dict.ConfigDict()

    # "distill": teacher, then both; "teacher": the teacher alone, with plateau and early stop; "baseline": a perceptron
    config.job = "distill"
    config.seed = 0  # of parameters, dropout and the order of cases
    config.resume = True  # go on from the latest checkpoint in the workdir; False refuses a workdir that has one

    config.data = config_dict.ConfigDict()
    config.data.source = "phantom"  # "phantom": drawn in memory; "folder": what is below `root`; "tfds": prepared there
    config.data.root = ""  # folder with data.json, images or shards and, optionally, train/val/test.xlsx or .csv
    config.data.layout = "auto"  # told by the files, or one of those in docs/data.md by its name
    config.data.single_label = True  # leave out images with several findings, in layouts with lists of findings
    config.data.labels_from = "auto"  # "boxes" or "entries", where ChestX-ray8 has both tables: "auto" is the boxes
    config.data.step_names = tuple(name for name, _ in PUBLISHED_STEPS)  # one short name a step, in order
    config.data.on_bad_record = "stop"  # "stop" at a bad record, or "skip" it into quarantine.jsonl
    # "ahead": every image is decoded once before training (those in shards were when they were written); "on_use": a
    # run starts at once, and stops at the first image that cannot be decoded
    config.data.check_images = "ahead"
    config.data.split_fractions = (0.7, 0.15, 0.15)  # train, val, test where there are no split files
    config.data.split_seed = 0  # of that split; apart from `seed`, so that runs compare
    config.data.near_duplicate_radius = 0  # bits of 64: patients whose images differ less stay together; 0: off
    config.data.max_megapixels = 64.0  # million pixels; a larger image is a bad record
    config.data.cache_megabytes = 2048.0  # MB of decoded images kept in memory; beyond, decoded at each use
    config.data.num_threads = 2  # threads that read and decode, in this process or in each worker
    config.data.num_workers = 0  # processes that read and decode; they keep no images, `cache_megabytes` is of 0 alone
    config.data.origins = ()  # cases of these origins alone, such as ("Phantom A",); () is all
    config.data.sampling = "uniform"  # or "inverse_frequency" of the last step's answer; an epoch stays as long
    config.data.augment = "none"  # or "light": small turns, shifts, growth and exposure of training images, no flips

    config.phantom = config_dict.ConfigDict()
    config.phantom.num_cases = 2000  # cases over all splits
    config.phantom.image_size = 128  # px, square
    config.phantom.prevalence = "published"  # of the nine diagnoses: "published" (67 % normal) or "flat"
    config.phantom.seed = 0  # of the drawing

    config.image_encoder = config_dict.ConfigDict()
    # "resnet18" (512 features) or "resnet_small" (4 x 128 features): trained along with the teacher;
    # "pretrained": frozen, see docs/encoders.md; "imported": features made elsewhere
    config.image_encoder.name = "resnet18"
    config.image_encoder.weights = ""  # "pretrained": folder or Hugging Face id; "imported": the folder of --store
    config.image_encoder.dtype = "float32"  # compute type of a pretrained encoder; "bfloat16" on accelerators
    config.image_encoder.image_size = 224  # px, square, after resizing; like the rest a pretrained encoder has its own
    config.image_encoder.fit = "crop"  # "crop" the long side, "pad" the short one, or "stretch"
    config.image_encoder.mean = (0.48145466, 0.4578275, 0.40821073)  # of red, green, blue in 0..1 (CLIP's)
    config.image_encoder.std = (0.26862954, 0.26130258, 0.27577711)

    config.prompts = config_dict.ConfigDict()
    config.prompts.template = "Question: {question} Options: {options}"
    config.prompts.encoder = "hashed"  # "hashed": a fixed random vector a text; "pretrained"; "imported"
    config.prompts.weights = ""  # "pretrained": folder or Hugging Face id of a BERT
    config.prompts.pooling = "cls"  # "cls" (paper) or "mean" of a pretrained encoder's token vectors
    config.prompts.max_tokens = 128  # tokens; a longer prompt is cut, and the log says so
    config.prompts.width = 768  # size of a hashed prompt vector

    config.features = config_dict.ConfigDict()
    config.features.store = True  # keep a frozen encoder's features; False: encode each batch anew (augmentation)
    config.features.folder = ""  # where they are kept; "" is `features` in the workdir, and runs may share one
    config.features.patches = "none"  # or "float16", "float32": keep patch tokens too, for explanations (ViT: 49 x 768)
    config.features.batch_size = 32  # images encoded at a time

    config.teacher = config_dict.ConfigDict()
    config.teacher.width = 768  # d_T: nodes, memory, image projections
    config.teacher.num_layers = 2  # graph-attention layers of a pass
    config.teacher.num_heads = 4  # heads a layer
    config.teacher.negative_slope = 0.2  # of the attention's LeakyReLU
    config.teacher.attention_dropout = 0.1  # share
    config.teacher.context_dropout = 0.2  # share
    config.teacher.head_dropout = 0.3  # share
    config.teacher.memory = True  # False: no memory node (ablation)
    config.teacher.write_back = True  # False: the memory node stays, answers are not written to it (ablation)
    config.teacher.text = True  # False: learned step vectors in the prompts' place (ablation)

    config.student = config_dict.ConfigDict()
    config.student.width = 512  # size of the feature that the answers update
    config.student.dropout = 0.3  # share

    config.baseline = config_dict.ConfigDict()  # job "baseline": pooled embeddings -> two layers
    config.baseline.hidden = 768  # size of the first layer
    config.baseline.steps = "all"  # what supervises: "all" steps, or the "last" alone
    config.baseline.batch_size = 8  # cases; takes the place of training.batch_size
    config.baseline.epochs = 50
    config.baseline.learning_rate = 1e-5  # AdamW
    config.baseline.weight_decay = 1e-4  # decoupled, on every parameter
    config.baseline.schedule = "cosine"  # to 0 over the run, or "constant"

    config.loss = config_dict.ConfigDict()
    config.loss.temperature = 2.0  # T of distillation and channel alignment
    config.loss.soft_label_scale = 0.5  # alpha_KD
    config.loss.channel_alignment_scale = 1.0  # alpha_CH
    config.loss.projection_width = 256  # where channel alignment compares the two
    config.loss.normaliser = "cka"  # of w_fw: "cka" (authors' code) or "trace" (the paper's Eq. 21)
    config.loss.alignment_gradient = "features"  # "features" (paper) or "projection" (authors' code)
    config.loss.train_teacher_projection = False  # True: as the paper's "learnable" reads; can collapse
    config.loss.target_dropout = False  # True: dropout stays on where the teacher makes targets (authors' code)
    config.loss.class_weights = "none"  # or "inverse_frequency", normalised to mean 1 a step

    config.training = config_dict.ConfigDict()
    config.training.batch_size = 32  # cases; of the job "baseline" baseline.batch_size
    config.training.teacher_epochs = 2  # job "distill": epochs of the teacher alone, before the joint ones
    config.training.teacher_job_epochs = 10  # job "teacher": most epochs
    config.training.joint_epochs = 40  # job "distill": epochs of both
    config.training.teacher_learning_rate = 5e-5  # AdamW
    config.training.student_learning_rate = 1e-4  # AdamW
    config.training.weight_decay = 0.01  # decoupled, on every parameter
    config.training.adam_epsilon = 1e-8
    config.training.clip_norm = 1.0  # global gradient norm
    config.training.plateau_patience = 2  # job "teacher": epochs without a better score before the rate drops
    config.training.plateau_factor = 0.5  # job "teacher": what the rate is multiplied by
    config.training.plateau_stop = 3  # job "teacher": epochs without a better score before training ends
    config.training.log_every = 10  # batches between two log entries
    config.training.checkpoint_minutes = 10.0  # minutes between checkpoints inside an epoch; each epoch ends with one
    config.training.compute_dtype = "float32"  # or "bfloat16", on accelerators: parameters and losses stay float32

    config.parallel = config_dict.ConfigDict()
    config.parallel.transform = "pmap"  # or "shard_map"; on one device neither
    config.parallel.num_devices = 0  # devices to use, a divisor of the batch size; 0: all
    config.parallel.num_passes = 1  # gradients of a batch are added up over so many passes, which takes less memory
    config.parallel.remat = False  # True: activations are computed again in the backward pass instead of kept

    config.evaluation = config_dict.ConfigDict()
    config.evaluation.batch_size = 128  # cases
    config.evaluation.best = "each"  # best weights by each network's own accuracy, or by the "mean" of both
    config.evaluation.num_resamples = 1000  # of the bootstrap by patient behind the intervals; 0 leaves them out
    config.evaluation.coverage = 0.9  # share of cases whose true answer the answer sets are to hold
    # "consistent": the most probable chains without a contradiction are reported too; see docs/tables.md
    config.evaluation.decoding = "independent"

    return config
