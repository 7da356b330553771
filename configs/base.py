"""Every setting of a run with its default and unit; the other configs change only what differs.

The defaults are the published sizes and rates (paper: Appendix D) on phantoms, with an image encoder that is trained
with the teacher. Start a run from another config, such as quickstart.
"""

from ml_collections import config_dict

from stepcot_jax.chain import PUBLISHED_STEPS


def get_config():
    config = config_dict.ConfigDict()

    # "distill": teacher, then both; "teacher": the teacher only, with plateau and early stop; "baseline": a perceptron
    config.job = "distill"
    config.seed = 0  # of parameters, dropout, order of cases and augmentation
    config.resume = True  # resume from the latest checkpoint in the workdir; False: refuse a workdir that has one

    config.data = config_dict.ConfigDict()
    config.data.source = "phantom"  # "phantom": drawn in memory; "folder": files in `root`; "tfds": prepared in `root`
    config.data.root = ""  # data folder of "folder" (docs/data.md), or the data_dir of "tfds"
    config.data.layout = "auto"  # detected; or "published", "chestxray8", "padchest_gr", "iu_xray", "csv"
    config.data.single_label = True  # in layouts with lists of findings: skip images with several findings
    config.data.labels_from = "auto"  # "boxes" or "entries" of ChestX-ray8, if both tables exist; "auto": boxes
    config.data.step_names = tuple(name for name, _ in PUBLISHED_STEPS)  # one short name per step, in order
    config.data.on_bad_record = "stop"  # "stop" at a bad record, or "skip" it into quarantine.jsonl
    # "ahead": decode every image once before training (images in shards were checked when written); "on_use": start at
    # once and stop at the first image that cannot be decoded
    config.data.check_images = "ahead"
    config.data.split_fractions = (0.7, 0.15, 0.15)  # shares of train, val, test, if the root has no split tables
    config.data.split_seed = 0  # of made splits; separate from `seed`, so runs with other seeds share the split
    config.data.fold = ""  # "2/5": the second of five folds is the test split, whatever the root's tables; "": no folds
    config.data.near_duplicate_radius = 0  # bits of 64: patients whose images differ in at most so many share a split
    config.data.max_megapixels = 64.0  # million pixels; a larger image is a bad record
    config.data.cache_megabytes = 2048.0  # MB of decoded images in memory; other images are decoded at each use
    config.data.num_threads = 2  # reading and decoding threads, in this process or in each worker
    config.data.num_workers = 0  # reading and decoding processes; the image cache works only with 0
    config.data.origins = ()  # origins of the cases to use, such as ("Phantom A",); (): all
    # "uniform": each case once an epoch; "inverse_frequency" of the last step's answers; "inverse_frequency_of_steps":
    # the mean over the annotated steps (authors' code)
    config.data.sampling = "uniform"
    config.data.augment = "none"  # or "light": small rotations, shifts, scalings and exposure changes; no flips

    config.phantom = config_dict.ConfigDict()
    config.phantom.num_cases = 2000  # cases, all splits together
    config.phantom.image_size = 128  # px, square
    config.phantom.prevalence = "published"  # of the nine diagnoses: "published" (67 % normal) or "flat"
    config.phantom.seed = 0  # of the drawn cases; separate from `seed`

    config.image_encoder = config_dict.ConfigDict()
    # "resnet18" (512 features) or "resnet_small" (4 x 128 features): trained with the teacher;
    # "pretrained": frozen, see docs/encoders.md; "imported": features made elsewhere
    config.image_encoder.name = "resnet18"
    config.image_encoder.weights = ""  # "pretrained": folder or Hugging Face id; "imported": folder of the features
    config.image_encoder.dtype = "float32"  # compute dtype of a pretrained encoder; "bfloat16" on accelerators
    config.image_encoder.image_size = 224  # px, square; a pretrained encoder uses its own
    config.image_encoder.fit = "crop"  # "crop" the long side, "pad" the short one, or "stretch"
    config.image_encoder.mean = (0.48145466, 0.4578275, 0.40821073)  # of red, green, blue in 0..1 (CLIP's)
    config.image_encoder.std = (0.26862954, 0.26130258, 0.27577711)  # of red, green, blue (CLIP's)

    config.prompts = config_dict.ConfigDict()
    config.prompts.template = "Question: {question} Options: {options}"  # fields: {name}, {question}, {options}
    config.prompts.encoder = "hashed"  # a fixed random vector per text; or "pretrained", or "imported" with features
    config.prompts.weights = ""  # "pretrained": folder or Hugging Face id of a text encoder
    config.prompts.pooling = "cls"  # "cls" (paper) or "mean" of a pretrained encoder's token vectors
    config.prompts.max_tokens = 128  # tokens; longer prompts are truncated and logged
    config.prompts.width = 768  # size of a hashed prompt vector

    config.features = config_dict.ConfigDict()
    config.features.store = True  # store a frozen encoder's features; False: encode every batch, as augmentation needs
    config.features.folder = ""  # folder of the store, which runs may share; "": `features` in the workdir
    config.features.patches = "none"  # or "float16", "float32": also store patch tokens, for explanations
    config.features.batch_size = 32  # images per encoded batch

    config.teacher = config_dict.ConfigDict()
    config.teacher.width = 768  # d_T: nodes, memory, image projections
    config.teacher.num_layers = 2  # graph-attention layers at each step
    config.teacher.num_heads = 4  # heads per layer
    config.teacher.negative_slope = 0.2  # of the attention's LeakyReLU
    config.teacher.attention_dropout = 0.1  # share of attention weights set to 0
    config.teacher.context_dropout = 0.2  # share of context features set to 0
    config.teacher.head_dropout = 0.3  # share of features in the step heads set to 0
    config.teacher.memory = True  # False: no memory node (ablation)
    config.teacher.write_back = True  # False: no step writes its answer to the memory node (ablation)
    config.teacher.text = True  # False: learned step vectors instead of prompts (ablation)

    config.student = config_dict.ConfigDict()
    config.student.width = 512  # size of the feature vector
    config.student.dropout = 0.3  # share of projected image features set to 0

    config.baseline = config_dict.ConfigDict()  # job "baseline": a two-layer perceptron on pooled embeddings
    config.baseline.hidden = 768  # size of the first layer
    config.baseline.steps = "all"  # supervised steps: "all", or only the "last"
    config.baseline.batch_size = 8  # cases; replaces training.batch_size
    config.baseline.epochs = 50  # epochs, without early stopping
    config.baseline.learning_rate = 1e-5  # AdamW
    config.baseline.weight_decay = 1e-4  # decoupled, on every parameter
    config.baseline.schedule = "cosine"  # to 0 over the run, or "constant"

    config.loss = config_dict.ConfigDict()
    config.loss.temperature = 2.0  # T of distillation and channel alignment
    config.loss.soft_label_scale = 0.5  # alpha_KD
    config.loss.channel_alignment_scale = 1.0  # alpha_CH
    config.loss.projection_width = 256  # width of both projections of channel alignment
    config.loss.normaliser = "cka"  # of w_fw: "cka" (authors' code) or "trace" (the paper's Eq. 21)
    config.loss.alignment_gradient = "features"  # "features" (paper) or "projection" (authors' code)
    config.loss.train_teacher_projection = False  # True: "learnable", as in the paper; can collapse to a constant
    config.loss.target_dropout = False  # True: dropout in the teacher's targets too (authors' code)
    config.loss.class_weights = "none"  # or "inverse_frequency", normalised to mean 1 per step

    config.training = config_dict.ConfigDict()
    config.training.batch_size = 32  # cases, over all devices; the job "baseline" uses baseline.batch_size
    config.training.teacher_epochs = 2  # job "distill": epochs of the teacher only, before the joint ones
    config.training.teacher_job_epochs = 10  # job "teacher": largest number of epochs
    config.training.joint_epochs = 40  # job "distill": epochs of both
    config.training.teacher_learning_rate = 5e-5  # AdamW
    config.training.student_learning_rate = 1e-4  # AdamW
    config.training.weight_decay = 0.01  # decoupled, on every parameter
    config.training.adam_epsilon = 1e-8  # added to the denominator of every AdamW update
    config.training.clip_norm = 1.0  # largest global gradient norm; larger gradients are scaled down
    config.training.plateau_patience = 2  # job "teacher": epochs without a better score before the rate drops
    config.training.plateau_factor = 0.5  # job "teacher": factor of the learning rate at each drop
    config.training.plateau_stop = 3  # job "teacher": epochs without a better score before training ends
    config.training.log_every = 10  # updates between two log entries
    config.training.checkpoint_minutes = 10.0  # minutes between checkpoints within an epoch; each epoch ends with one
    config.training.compute_dtype = "float32"  # or "bfloat16", on accelerators: parameters and losses stay float32
    # true answers given in training, so that the networks follow corrections (docs/corrections.md): "none": as
    # published; "random": each with probability given_rate; "prefix": the first steps', to a share given_rate of the
    # cases; "annealed": as "random", at a rate that goes from 1 to given_rate
    config.training.given_answers = "none"
    config.training.given_rate = 0.75  # 0 to 1
    config.training.given_noise = 0.0  # share of the given answers that are wrong, as people's are
    config.training.given_to = "both"  # networks that are given answers: "both", or only the "teacher"

    config.parallel = config_dict.ConfigDict()
    config.parallel.transform = "pmap"  # or "shard_map"; unused on one device
    config.parallel.num_devices = 0  # devices to use, a divisor of the batch size; 0: all devices
    config.parallel.num_passes = 1  # passes per batch (gradient accumulation); more passes need less memory
    config.parallel.remat = False  # True: recompute activations in the backward pass

    config.evaluation = config_dict.ConfigDict()
    config.evaluation.batch_size = 128  # cases
    config.evaluation.best = "each"  # best weights by each network's own accuracy, or by the "mean" of both
    config.evaluation.num_resamples = 1000  # resamples of the bootstrap by patient; 0: no intervals
    config.evaluation.coverage = 0.9  # target share of cases whose answer sets contain the true answer
    config.evaluation.coverage_by = "step"  # of all cases of a step together, or of each true "answer": larger sets
    # "consistent": also report the most probable chains without contradictions; see docs/tables.md
    config.evaluation.decoding = "independent"
    config.evaluation.step_costs = ()  # cost of checking each step, when the next one is chosen; (): all the same

    return config
