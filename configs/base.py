"""Every setting of a run with its default and unit; the other configs change only what differs.

The defaults are the published sizes and rates (paper: Appendix D) on phantoms, with an image encoder that is trained
with the teacher. Start a run from another config, such as quickstart.
"""

from ml_collections import config_dict

from stepcot_jax.chain import PUBLISHED_STEPS


def get_config():
    config = config_dict.ConfigDict()

    # "distill": teacher, then both; "teacher": the teacher only, with plateau and early stop; "baseline": a
    # network without a teacher (baseline.form); "sft": fine-tune a policy on reasoning records; "grpo": fine-tune it,
    # then optimise rewards; "dpo": fine-tune it, then prefer the better of two replies
    config.job = "distill"
    config.seed = 0  # of parameters, dropout, order of cases and augmentation
    config.resume = True  # resume from the latest checkpoint in the workdir; False: refuse a workdir that has one

    config.data = config_dict.ConfigDict()
    config.data.source = "phantom"  # "phantom": drawn in memory; "folder": files in `root`; "tfds": prepared in `root`
    # Every setting that names a folder may also name one on a store, gs://BUCKET/FOLDER.
    config.data.root = ""  # data folder of "folder" (docs/data.md), or the data_dir of "tfds"
    config.data.layout = (
        "auto"  # detected; or "published", "chestxray8", "padchest_gr", "iu_xray", "rad_restruct", "csv"
    )
    config.data.single_label = True  # in layouts with lists of findings: skip images with several findings
    config.data.labels_from = "auto"  # "boxes" or "entries" of ChestX-ray8, if both tables exist; "auto": boxes
    config.data.step_names = tuple(name for name, _ in PUBLISHED_STEPS)  # one short name per step, in order
    config.data.on_bad_record = "stop"  # "stop" at a bad record, or "skip" it into quarantine.jsonl
    # "ahead": decode every image once before training (those of "tfds" were decoded when prepared); "on_use": start at
    # once and stop at the first image that cannot be decoded
    config.data.check_images = "ahead"
    config.data.split_fractions = (0.7, 0.15, 0.15)  # shares of train, val, test, if the root has no split tables
    config.data.split_seed = 0  # of made splits; separate from `seed`, so runs with other seeds share the split
    config.data.fold = ""  # "2/5": the second of five folds is the test split, whatever the root's tables; "": no folds
    config.data.near_duplicate_radius = 0  # bits of 64: patients whose images differ in at most so many share a split
    config.data.max_megapixels = 64.0  # million pixels; a larger image is a bad record
    config.data.cache_megabytes = 2048.0  # MB of decoded images in memory; other images are decoded at each use
    # reading and decoding threads, in this process or in each worker; 0: one a core of this process where it reads
    # single images, 2 where a training reads batches and in each worker
    config.data.num_threads = 0
    config.data.num_workers = 0  # reading and decoding processes; the image cache works only with 0
    config.data.origins = ()  # origins of the cases to use, such as ("Phantom A",); (): all
    # training cases to use, by patient, chosen by split_seed: a smaller number is inside a larger one; 0: all
    config.data.num_train = 0
    # Training labels withheld, chosen by split_seed; validation and test keep theirs:
    config.data.withhold_chains = 0.0  # share of the training cases of which the last step's answer alone is labelled
    config.data.withhold_answers = 0.0  # share of the single answers before the last step
    # "uniform": each case once an epoch; "inverse_frequency" of the last step's answers; "inverse_frequency_of_steps":
    # the mean over the annotated steps (authors' code)
    config.data.sampling = "uniform"
    config.data.augment = "none"  # or "light": small rotations, shifts, scalings and exposure changes; no flips
    # what training makes of answers marked uncertain: "ignore" (no loss), the step's "negative" option, or "positive"
    # (the answer itself); docs/data.md
    config.data.uncertain = "ignore"

    config.phantom = config_dict.ConfigDict()
    config.phantom.num_cases = 2000  # cases, all splits together
    config.phantom.image_size = 128  # px, square
    config.phantom.prevalence = "published"  # of the nine diagnoses: "published" (67 % normal) or "flat"
    config.phantom.seed = 0  # of the drawn cases; separate from `seed`

    config.image_encoder = config_dict.ConfigDict()
    # "resnet18" (512 features) or "resnet_small" (4 x 128 features): trained with the teacher;
    # "pretrained": frozen, see docs/encoders.md; "imported": features made elsewhere. A policy trains an encoder of its
    # own (policy.encoder_widths), or reads the patches of a "pretrained" one
    config.image_encoder.name = "resnet18"
    config.image_encoder.weights = ""  # "pretrained": folder or Hugging Face id; "imported": folder of the features
    config.image_encoder.dtype = "float32"  # compute dtype of a pretrained encoder; "bfloat16" on accelerators
    config.image_encoder.image_size = 224  # px, square; a pretrained encoder uses its own, which a policy must name
    config.image_encoder.fit = "crop"  # "crop" the long side, "pad" the short one, or "stretch"
    # decode JPEG at 1/2, 1/4 or 1/8 of its sides, not below twice the encoder's: faster, and other pixels
    # (docs/encoders.md)
    config.image_encoder.reduced_jpeg = False
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
    # dtype in which a policy stores the patch tokens that it reads, "float16" or "float32"; "none": float32
    config.features.patches = "none"
    config.features.batch_size = 0  # images per encoded batch; 0: 256 an accelerator of the process, 32 on its cores

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

    config.baseline = config_dict.ConfigDict()  # job "baseline": one network that no teacher teaches
    # a two-layer "perceptron" on pooled image and prompt embeddings; linear "heads", one a step, on image features: the
    # plain network, where the encoder trains along (--config=plain); or a "student" that has no teacher
    config.baseline.form = "perceptron"
    config.baseline.hidden = 768  # size of the perceptron's first layer
    # supervised steps: "all"; only the "last"; or "shuffled": all, but the answers before the last are those of another
    # training case with the same last answer (a control: more tasks, no more information)
    config.baseline.steps = "all"
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
    # weight in the teacher's phase of the plain network: one linear head a step on the image encoder, trained along; 0:
    # none (paper)
    config.loss.plain_scale = 0.0
    config.loss.class_weights = "none"  # or "inverse_frequency", normalised to mean 1 per step
    config.loss.parts = ()  # further parts of the student's loss, "NAME=WEIGHT" of losses.step_cot.PARTS

    config.vqa = config_dict.ConfigDict()  # jobs "sft" and "grpo": reasoning records (docs/grounded.md)
    config.vqa.source = "phantom"  # "phantom": drawn in memory as `phantom` says; "folder": the questions in `root`
    config.vqa.root = ""  # folder or file of "folder", in any layout of docs/sources.md
    config.vqa.layout = "auto"  # detected from the files, or its name
    config.vqa.box_size = (0, 0)  # of the picture that GEMeX's boxes refer to, which no file states
    config.vqa.shared_pictures = "keep"  # pictures that stand in several splits; or "drop": from training
    config.vqa.val_share = 0.15  # of the training patients, for validation, where a source has train and test alone
    # Of a chain's cases, with config.vqa.dialect="levels": level k of `stepcot constrain` asks the first k steps, then
    # the diagnosis, in one reply; such as (0, 3, 7). (): each step is a question
    config.vqa.levels = ()
    config.vqa.level_forms = ("constraints", "true")  # and "true": step k alone, with true answers to those before it
    config.vqa.dialect = "gemex"  # or "gemex_plain", "lvkc", "lvkc_released", "medclm", "plain" without boxes, "levels"
    config.vqa.with_thinking = True  # False: replies without the part before the answer, where the dialect allows it
    config.vqa.num_validated = 0  # questions of the validation split that are asked after each epoch; 0: all

    config.policy = config_dict.ConfigDict()  # a decoder over the cells of an image's feature map
    config.policy.start = ""  # workdir of a finished run whose weights it starts from; "": random weights
    # A Qwen2.5-VL in place of the small decoder (docs/qwen.md): folder or Hugging Face id. It brings network and
    # tokenizer: tokenizer, grid, encoder_widths and the sizes below then have no effect
    config.policy.weights = ""
    config.policy.random = (
        False  # True: random weights at the sizes of `weights`, whose tensors are not read (a dry run)
    )
    config.policy.shrink = 1  # or 2, 4, 8: widths and layers of a random one are divided by it
    config.policy.low_rank = 0  # rank of LoRA on the decoder, which is frozen then; 0: the whole decoder trains
    config.policy.low_rank_alpha = 32.0  # LoRA's product is scaled by low_rank_alpha / low_rank
    # the decoder's layers with LoRA, as a regular expression of whole paths
    config.policy.low_rank_targets = r"decoder/layer_\d+/(attention/(query|key|value|out)|gate|up|down)"
    config.policy.tokenizer = ""  # folder or Hugging Face id; "": a closed vocabulary counted on the training records
    config.policy.num_merges = 1000  # most phrases of the closed vocabulary that become one token
    config.policy.grid = 8  # cells on a side of the image
    config.policy.encoder_widths = (
        24,
        64,
    )  # channels of each stage; the first has 1/4 of the resolution, each next 1/2
    config.policy.width = 96  # of a token's vector
    config.policy.num_layers = 3
    config.policy.num_heads = 3
    config.policy.num_kv_heads = 1  # heads of keys and values, a divisor of num_heads
    config.policy.head_width = 32
    config.policy.mlp_width = 192
    config.policy.longest_reply = 0  # tokens that are sampled at most; 0: those of the longest training reply

    config.sft = config_dict.ConfigDict()  # supervised fine-tuning
    config.sft.epochs = 8
    config.sft.batch_size = 16  # packs: questions of one image in a row, up to pack_length tokens
    config.sft.epoch_end = "floor"  # updates of an epoch: records / batch, rounded down, or up ("ceil")
    config.sft.pack_length = 256  # tokens; 0: one question a pack
    config.sft.learning_rate = 2e-3  # AdamW, after the warm-up
    config.sft.first_learning_rate = 0.0  # at the first update
    config.sft.warmup_epochs = 0.5  # the rate rises linearly
    config.sft.schedule = "cosine"  # to 0 over the rest, or "constant"
    config.sft.weight_decay = 0.01  # decoupled, on every parameter
    config.sft.reduction = "tokens"  # mean over all tokens; or "parts": weighted means of answer and reasoning (MedCLM)
    config.sft.answer_weight = 1.0  # of the tokens of the answer
    config.sft.reasoning_weight = 1.0  # of the tokens before it

    config.grpo = config_dict.ConfigDict()  # after SFT; GEMeX-RMCoT: Eq. 2. docs/departures.md: what it leaves open
    config.grpo.epochs = 4
    config.grpo.batch_size = 32  # prompts
    config.grpo.epoch_end = "floor"  # or "ceil", as of sft
    config.grpo.updates_per_epoch = 0  # batches of prompts; 0: each training record once
    config.grpo.group_size = 8  # G: replies to a prompt
    config.grpo.num_updates = 1  # passes over a batch of rollouts
    config.grpo.learning_rate = 5e-4  # AdamW
    config.grpo.schedule = "constant"  # or "cosine" to 0
    config.grpo.weight_decay = 0.0
    config.grpo.temperature = 1.0  # of sampling and of every log-probability
    config.grpo.ratio = "token"  # of probabilities; or "sequence" (as printed), "sequence_mean"
    config.grpo.clip_low = 0.2  # eps: ratios are clipped below at 1 - clip_low
    config.grpo.clip_high = 0.2  # and above at 1 + clip_high
    config.grpo.dual_clip = 0.0  # least multiple of a negative advantage; 0: none
    config.grpo.beta = 1e-3  # weight of the KL divergence from the start of GRPO; 0: no copy of the start is kept
    config.grpo.kl = "k3"  # its estimator; or "k1", "k2"
    config.grpo.clamp_log_ratio = 0.0  # largest magnitude of the estimator's log-ratio; 0: none
    config.grpo.clamp_kl = 0.0  # largest magnitude of the estimate; 0: none
    config.grpo.length_norm = "sequence_mean"  # or "token_mean", "constant", "sequence_sum"
    config.grpo.kl_norm = "length_norm"  # of the KL; or "sequence_sum", of a completion (as printed)
    config.grpo.std_ddof = 1  # of a group's standard deviation; or 0
    config.grpo.std_epsilon = 1e-6  # added to it
    config.grpo.scale = "group"  # whose deviation divides advantages; or "batch", "none"
    config.grpo.mask_truncated = False  # True: replies cut at the longest length take no part
    config.grpo.stage_credit = "none"  # or "released": advantages of tokens by stage, as in MEDSAGE's public code
    config.grpo.shuffle_rewards = False  # True: rewards are shuffled within the batch (a control that must not learn)

    config.dpo = config_dict.ConfigDict()  # after SFT, as in MEDSAGE's public code; needs rewards.gate="released"
    config.dpo.epochs = 1
    config.dpo.batch_size = 32  # prompts, each with at most one pair
    config.dpo.epoch_end = "floor"  # or "ceil", as of sft
    config.dpo.updates_per_epoch = 0  # batches of prompts; 0: each training record once
    config.dpo.group_size = 6  # replies of the start, among which are the best and the worst
    config.dpo.learning_rate = 5e-5  # AdamW
    config.dpo.schedule = "constant"  # or "cosine" to 0
    config.dpo.weight_decay = 0.0
    config.dpo.temperature = 1.0  # of sampling and of every log-probability
    config.dpo.beta = 0.1  # scale of the difference of log-ratios; the public code has none

    config.rewards = config_dict.ConfigDict()  # rewards of a reply, and their definitions (docs/grounded.md)
    # "name=weight" of rewards.functions.FUNCTIONS; one of weight 0 is logged alone; "consistency": of stage facts.
    # Leave "grounding" out where no record has a box, or with config.vqa.dialect="plain".
    config.rewards.functions = ("answer=1", "grounding=1", "well_formed=0")
    config.rewards.grounding = "threshold"  # 1 if mIoU > least_iou and the counts are equal; or "mean_iou"
    config.rewards.least_iou = 0.75
    config.rewards.matching = "optimal"  # which box with which; or "ordered"
    config.rewards.empty_boxes = "one"  # worth of no box on either side; or "zero"
    config.rewards.multi_choice = "exact"  # equal sets; or "jaccard"
    config.rewards.open_answer = "exact"  # folded text or a synonym; or "equal", "token_f1", "judge"
    config.rewards.choice_reading = "plain"  # or "strict": hedged choices are wrong
    config.rewards.ill_formed = "nothing"  # worth of a reply that breaks its dialect's grammar; or "parts"
    config.rewards.gate = "none"  # or "released": all or nothing, as in MEDSAGE's public code
    config.rewards.judge_url = ""  # "judge": OpenAI-compatible endpoint; the key comes from OPENAI_API_KEY
    config.rewards.judge_model = ""
    config.rewards.judge_cap = 0  # tokens that the judge may take in a run, over all its starts; 0: no limit

    config.self_check = config_dict.ConfigDict()  # in GRPO: a wrong first attempt is checked and tried again (MEDSAGE)
    config.self_check.enabled = False
    config.self_check.alpha = 0.2  # weight of a self-check that led to a right second attempt
    config.self_check.norm = "sum"  # over its tokens (Eq. 12), or "mean"
    config.self_check.context = "check"  # of the second attempt: first attempt and check, or the "first" attempt alone
    config.self_check.first_attempt = "zero"  # advantage of a wrong first attempt; or "outcome"
    config.self_check.chunk = 0  # replies sampled at a time; 0: as many as fit the device, by XLA's plan of memory
    config.self_check.sft_share = 0.25  # of the training records that SFT shows with a wrong attempt and a check

    config.curriculum = config_dict.ConfigDict()  # in SFT: boxes drawn, bare picture, another case (MedCLM)
    config.curriculum.schedule = "none"  # or "epochs", "adaptive" (public code), "mixed" (constant shares)
    config.curriculum.shares = (0.4, 0.4, 0.2)  # of the epochs, or of the rows: easy, medium, hard
    config.curriculum.easy_epochs = 4  # "adaptive": epochs before the ramp
    config.curriculum.ramp_epochs = 10  # "adaptive": length of the ramp of the medium stage
    config.curriculum.hard_epoch = 19  # "adaptive": first epoch with a hard stage
    config.curriculum.gap_centre = 0.5  # "adaptive": of the sigmoid over the gap between easy and medium loss
    config.curriculum.gap_width = 0.1
    config.curriculum.decay = 0.1  # "adaptive": share of the old value in running means
    config.curriculum.first_loss = 1e-3  # "adaptive": running means of a domain before its first loss
    config.curriculum.first_overall = 1e-4  # "adaptive": and of the mean over domains and stages
    config.curriculum.least_loss = 1e-8  # "adaptive": an easy loss below it has no gap
    config.curriculum.plateau_values = 5  # "adaptive": mean losses of epochs that a plateau needs
    config.curriculum.plateau_tolerance = 0.01
    config.curriculum.rise = 0.05  # "adaptive": rise of the mean loss that lowers the hard share
    config.curriculum.hard_gap = 0.6  # "adaptive": least median gap that raises it
    config.curriculum.hard_increase = 0.05
    config.curriculum.most_hard = 0.3
    config.curriculum.hard_factor = 0.9

    config.start = config_dict.ConfigDict()
    # jobs "teacher" and "distill": workdir of a finished run whose weights are the start, steps and answers matched by
    # name, other steps' heads fresh; "": random weights
    config.start.checkpoint = ""

    config.training = config_dict.ConfigDict()
    config.training.batch_size = 32  # cases, over all devices; the job "baseline" uses baseline.batch_size
    config.training.updates_per_epoch = 0  # jobs that read chains; 0: each training case once
    config.training.teacher_epochs = 2  # job "distill": epochs of the teacher only, before the joint ones
    config.training.teacher_job_epochs = 10  # job "teacher": largest number of epochs
    config.training.joint_epochs = 40  # job "distill": epochs of both
    config.training.teacher_learning_rate = 5e-5  # AdamW
    config.training.student_learning_rate = 1e-4  # AdamW
    config.training.schedule = "constant"  # job "distill": or "cosine", each network's rate falls to 0 over its epochs
    config.training.weight_decay = 0.01  # decoupled, on every parameter
    config.training.adam_epsilon = 1e-8  # added to the denominator of every AdamW update
    config.training.clip_norm = 1.0  # largest global gradient norm; larger gradients are scaled down
    config.training.plateau_patience = 2  # job "teacher": epochs without a better score before the rate drops
    config.training.plateau_factor = 0.5  # job "teacher": factor of the learning rate at each drop
    config.training.plateau_stop = 3  # job "teacher": epochs without a better score before training ends
    config.training.log_every = 10  # updates between two log entries
    config.training.checkpoint_minutes = 10.0  # minutes between checkpoints within an epoch; each epoch ends with one
    config.training.profile_updates = ()  # first and last update that are traced for XProf, such as (10, 15)
    config.training.compute_dtype = "float32"  # or "bfloat16", on accelerators: parameters and losses stay float32
    # true answers given in training, so that the networks follow corrections (docs/corrections.md): "none": as
    # published; "random": each with probability given_rate; "varied": with one that is drawn for each case, from 0 to
    # given_rate
    config.training.given_answers = "none"
    config.training.given_rate = 0.75  # 0 to 1
    config.training.given_noise = 0.0  # share of the given answers that are wrong, as people's are
    config.training.given_to = "both"  # networks that are given answers: "both", or only the "teacher"

    config.loggers = config_dict.ConfigDict()
    config.loggers.names = ()  # beside metrics.jsonl and TensorBoard: "wandb", "mlflow"; each needs its extra
    config.loggers.mode = "offline"  # below the workdir; "online": sent to the service that its own variables name
    config.loggers.project = "stepcot-jax"  # project of Weights & Biases, experiment of MLflow
    config.loggers.run = ""  # name of the run there; "": that of the workdir

    config.parallel = config_dict.ConfigDict()
    # or "pmap", which JAX only maintains; unused on one device. "mesh" also divides the parameters of policy.weights
    config.parallel.transform = "shard_map"
    config.parallel.num_devices = 0  # devices to use, a divisor of the batch size; 0: all devices
    config.parallel.model_devices = 1  # "mesh": devices that divide each layer; the others divide the batch
    config.parallel.num_passes = 1  # passes per batch (gradient accumulation); more passes need less memory
    # "mesh": gather the parameters once an update, before its passes; False: in every pass, which needs less memory
    config.parallel.gather_once = True
    # policy.weights: like layers are stacked in an update's program, which compiles faster; with remat=True, as
    # without it a scan keeps more activations
    config.parallel.scan_layers = True
    config.parallel.remat = False  # True: recompute activations in the backward pass

    config.evaluation = config_dict.ConfigDict()
    config.evaluation.batch_size = 128  # cases
    config.evaluation.best = "each"  # best weights by each network's own accuracy, or by the "mean" without "plain"
    config.evaluation.num_resamples = 1000  # resamples of the bootstrap by patient; 0: no intervals
    config.evaluation.coverage = 0.9  # target share of cases whose answer sets contain the true answer
    config.evaluation.coverage_confidence = 0.95  # share of validation splits that reach it; 0: on average over them
    # threshold of each answer, chosen on validation: highest sensitivity + specificity ("youden"), a fixed
    # "sensitivity" or "specificity", or lowest "cost"
    config.evaluation.operating_point = "youden"
    config.evaluation.operating_target = 0.9  # sensitivity or specificity to reach
    config.evaluation.miss_cost = 1.0  # cost of a missed case, in false alarms
    config.evaluation.step_costs = ()  # cost of checking each step, when the next one is chosen; (): all the same
    # expected rise of the last answer's accuracy, 0 to 1, below which no further step is asked for
    config.evaluation.least_gain = 0.001
    config.evaluation.gate_false_alarms = (
        0.05  # share of validation images that the gate flags; 0: no gate, docs/gate.md
    )

    return config
