"""A folder in the published Step-CoT layout, without pretrained weights.

The image encoder is a small residual network trained with the teacher; the prompts are fixed random vectors.

python -m stepcot_jax.main --config=step_cot --config.data.root=FOLDER --workdir=runs/step_cot

Hardware and time: 2 CPU cores, 130 s for 589 radiographs (293 s with other load). Expected on a sample of NIH
ChestX-ray8 (85 test cases, one run): detection 72 % (teacher) and 73 % (student), majority class 62 %. At this size a
true detection does not move the teacher's diagnosis (0.0 points), and the student's by 21 points. For a few hundred
cases small_data is the better config.
"""

from configs import base


def get_config():
    config = base.get_config()
    config.data.source = "folder"
    config.image_encoder.name = "resnet_small"
    config.image_encoder.image_size = 128
    config.teacher.width = 256
    config.student.width = 256
    config.training.teacher_epochs = 4
    config.training.joint_epochs = 26
    config.training.given_answers = "random"  # so that corrections change later answers (docs/corrections.md)
    config.training.teacher_learning_rate = 5e-4
    config.training.student_learning_rate = 5e-4
    return config
