"""A few hundred annotated radiographs: frozen features of a pretrained network, small teacher and student.

stepcot features import FEATURES.npz --root FOLDER --store features/mine
python -m stepcot_jax.main --config=small_data --config.data.root=FOLDER --workdir=runs/small \
    --config.image_encoder.weights=features/mine
stepcot tables folds --config=small_data --config.data.root=FOLDER --workdir=runs/folds \
    --config.image_encoder.weights=features/mine --seeds=0,1,2

With a checkpoint in place of imported features add --config.image_encoder.name=pretrained (docs/encoders.md).

Hardware and time: 2 CPU cores with other load, 1 minute a run, 15 minutes for the 15 runs of the table. Expected on 589
radiographs with ImageNet features: detection 79 % (teacher) and 78 % (student), most frequent answer 53 %, logistic
regression on the same features 81 %; see docs/small_data.md for the intervals and for what else was tried.
"""

from configs import base


def get_config():
    config = base.get_config()
    config.data.source = "folder"
    config.image_encoder.name = "imported"
    config.teacher.width = 96
    config.student.width = 96
    config.loss.projection_width = 48
    config.training.teacher_epochs = 2
    config.training.joint_epochs = 12
    config.training.teacher_learning_rate = 5e-4
    config.training.student_learning_rate = 5e-4
    return config
