"""The numbers of the paper's text and captions, as they are printed: place | row | column | measure | value.

Rows and columns as in the tables; `paper` and `protocol` are rows of what is said of all runs. A range is two lines,
from and to. What the text repeats from a table stands here again, with the place that repeats it. See `printed.py`.
"""

from __future__ import annotations

PROSE = """
Abstract | paper | all | pairs | 13
Abstract | asd | all | pairs with the highest accuracy, more than | 10
Abstract | asd | all | pairs above KD | 12
Abstract | asd | P6 | mCE | 86.1
Abstract | asd | P1 | projection on the robust subspace | 0.45
Abstract | kd | P1 | projection on the robust subspace | 0.12
Sec. 1 | paper | all | pairs | 13
Sec. 1 | asd | all | pairs with the highest accuracy | 10
Sec. 1 | asd | all | pairs above KD | 12
Sec. 1 | asd | P1 | signed cosine | -0.36
Sec. 1 | kd | P1 | signed cosine | 0.00
Sec. 1 | asd | P1 | projection on the robust subspace | 0.45
Sec. 1 | kd | P1 | projection on the robust subspace | 0.12
Sec. 3.2 | protocol | all | K | 4
Sec. 3.2 | asd | P1 | B to which accuracy and mCE are insensitive, from | 32
Sec. 3.2 | asd | P1 | B to which accuracy and mCE are insensitive, to | 256
Sec. 3.4 | protocol | all | ε | 0.1
Sec. 3.4 | protocol | all | threshold of the signed cosine | -0.1
Sec. 4.2 | protocol | all | ε | 0.1
Sec. 4.2 | protocol | all | angular margin, ° | 84.3
Sec. 4.3 | teacher | P1 | angle of shortcut and T_final's PCA, ° | 65.3
Sec. 4.3 | teacher | P1 | angle of shortcut and T_early's PCA, ° | 38.6
Sec. 4.3 | teacher | P1 | shortcut energy, highest | 0.25
Sec. 4.3 | teacher | P1 | shortcut energy, fall in % | 49
Sec. 4.3 | teacher | P1 | shortcut energy, final | 0.13
Sec. 4.3 | teacher | P1 | robust energy, from | 0.11
Sec. 4.3 | teacher | P1 | robust energy, to | 0.13
Sec. 5.1 | CIFAR-100 | all | training images | 50000
Sec. 5.1 | CIFAR-100 | all | test images | 10000
Sec. 5.1 | CIFAR-100 | all | classes | 100
Sec. 5.1 | CIFAR-100-C | all | corruptions | 15
Sec. 5.1 | CIFAR-100-C | all | severities | 5
Sec. 5.1 | ImageNet-100 | all | classes | 100
Sec. 5.1 | TinyImageNet | all | classes | 200
Sec. 5.1 | TinyImageNet | all | training images | 100000
Sec. 5.1 | TinyImageNet | all | test images | 10000
Sec. 5.1 | TinyImageNet | all | image size | 64
Sec. 5.1 | stylised | P11 | classes | 100
Sec. 5.1 | ImageNet-R | P11 | classes | 19
Sec. 5.1 | ImageNet-A | P11 | classes | 15
Sec. 5.1 | ImageNet-A | P11 | images | 680
Sec. 5.1 | protocol | CIFAR-100 | epochs | 240
Sec. 5.1 | protocol | CIFAR-100 | momentum | 0.9
Sec. 5.1 | protocol | CIFAR-100 | weight decay | 0.0005
Sec. 5.1 | protocol | CIFAR-100 | rate | 0.05
Sec. 5.1 | protocol | CIFAR-100 | batch | 64
Sec. 5.1 | protocol | ImageNet-100 | epochs | 100
Sec. 5.1 | protocol | ImageNet-100 | rate | 0.1
Sec. 5.1 | protocol | ImageNet-100 | batch | 256
Sec. 5.1 | protocol | TinyImageNet | epochs | 200
Sec. 5.1 | protocol | all | T_early, % of training | 15
Sec. 5.1 | protocol | all | α_kd | 1.0
Sec. 5.1 | protocol | all | α_tc | 0.8
Sec. 5.1 | protocol | all | α_ss | 1.0
Sec. 5.1 | protocol | all | τ_kd | 4.0
Sec. 5.1 | protocol | all | τ_c | 0.07
Sec. 5.1 | protocol | all | ε | 0.1
Sec. 5.1 | protocol | all | K | 4
Sec. 5.1 | protocol | all | M | 4096
Sec. 5.1 | protocol | all | warm-up epochs | 20
Sec. 5.1 | CIFAR-100-C | all | corruptions | 15
Sec. 5.1 | CIFAR-100-C | all | severity of mCE | 5
Sec. 5.1 | protocol | all | seeds | 3
Table 1, caption | paper | P1–P5 | pairs | 5
Table 1, caption | protocol | P1–P5 | seeds | 3
Sec. 5.2 | asd | P1–P5 | pairs above KD | 4
Sec. 5.2 | paper | P1–P5 | pairs | 5
Sec. 5.2 | asd | P2 | accuracy | 75.87
Sec. 5.2 | asd | P4 | accuracy | 74.16
Sec. 5.2 | asd | P5 | accuracy | 74.26
Sec. 5.2 | crd+kd | P1 | accuracy against asd | 0.21
Sec. 5.2 | crd+kd | P1 | std, times asd's | 5
Sec. 5.2 | crd+kd | P1 | std of accuracy | 0.34
Sec. 5.2 | asd | P1 | std of accuracy | 0.07
Sec. 5.2 | asd | P3 | accuracy | 73.13
Sec. 5.2 | kd | P3 | accuracy | 73.32
Sec. 5.2 | at+kd | P3 | accuracy | 73.78
Table 2, caption | paper | P6–P10 | pairs | 5
Table 2, caption | protocol | P6–P10 | seeds | 3
Sec. 5.3 | asd | P6–P10 | pairs with the highest accuracy | 5
Sec. 5.3 | asd | P6 | accuracy against kd | 1.33
Sec. 5.3 | asd | P6 | accuracy against crd+kd | 0.24
Table 3, caption | protocol | P11–P13 | seeds | 3
Sec. 5.4 | asd | P11–P13 | pairs with the highest accuracy | 3
Sec. 5.4 | asd | P11 | accuracy | 83.24
Sec. 5.4 | asd | P12 | accuracy | 46.00
Sec. 5.4 | asd | P13 | accuracy | 85.48
Sec. 5.4 | asd | P12 | std of accuracy | 1.45
Sec. 5.4 | asd | P12 | seeds above crd+kd | 3
Sec. 5.4 | asd | P12 | accuracy against crd+kd, seed 1 | 0.62
Sec. 5.4 | asd | P12 | accuracy against crd+kd, seed 2 | 1.14
Sec. 5.4 | asd | P12 | accuracy against crd+kd, seed 3 | 1.18
Sec. 5.5 | protocol | ADE20K | image size | 512
Sec. 5.5 | protocol | ADE20K | iterations | 40000
Sec. 5.5 | protocol | ADE20K | momentum | 0.9
Sec. 5.5 | protocol | ADE20K | rate | 0.02
Sec. 5.5 | asd | ade20k-resnet18 | mIoU | 38.87
Sec. 5.5 | asd | ade20k-resnet18 | mIoU against ufd-kd | 1.98
Sec. 5.5 | asd | ade20k-resnet18 | mIoU against student | 3.99
Sec. 5.5 | asd | ade20k-mobilenetv2 | mIoU | 37.91
Sec. 5.5 | asd | ade20k-mobilenetv2 | mIoU against ufd-kd | 1.67
Table 4, caption | protocol | ADE20K | image size | 512
Table 4, caption | protocol | ADE20K | iterations | 40000
Table 5, caption | CIFAR-100-C | all | severity of mCE | 5
Table 5, caption | protocol | P1–P6 | seeds | 3
Sec. 5.6 | asd | P4 | mCE | 91.7
Sec. 5.6 | asd | P5 | mCE | 85.2
Sec. 5.6 | asd | P6 | mCE | 86.1
Sec. 5.6 | crd+kd | P1 | mCE | 85.2
Sec. 5.6 | asd | P1 | mCE | 85.6
Sec. 5.6 | kd | P1 | mCE | 86.2
Sec. 5.6 | ckptkd | P1–P6 | pairs with an mCE above KD's | 5
Sec. 5.6 | paper | P1–P6 | pairs | 6
Sec. 5.6 | kd | P1 | mCE | 86.2
Sec. 5.6 | ckptkd | P1 | mCE | 90.9
Sec. 5.6 | kd | P2 | mCE | 93.7
Sec. 5.6 | ckptkd | P2 | mCE | 99.1
Sec. 5.6 | kd | P6 | mCE | 86.9
Sec. 5.6 | ckptkd | P6 | mCE | 92.2
Sec. 5.6 | asd | P2 | mCE | 94.2
Sec. 5.6 | kd | P2 | mCE | 93.7
Sec. 5.6 | dkd | P2 | mCE | 93.4
Sec. 5.7 | teacher | P3 | parameters, times the student's | 6
Sec. 6.1 | asd-no-ss | P1 | accuracy | 80.19
Sec. 6.1 | asd-no-ss | P1 | mCE | 85.8
Sec. 6.1 | asd-no-tc | P1 | accuracy | 80.15
Sec. 6.1 | asd-no-tc | P1 | mCE | 85.9
Sec. 6.1 | asd | P1 | accuracy | 80.50
Sec. 6.1 | asd | P1 | mCE | 85.6
Table 7, caption | protocol | CIFAR-100 | T_early epoch | 36
Sec. 6.2 | asd | P1 | stable T_early, % of training, from | 10
Sec. 6.2 | asd | P1 | stable T_early, % of training, to | 30
Sec. 6.2 | protocol | CIFAR-100 | T_early epoch | 36
Sec. 6.2 | protocol | all | T_early, % of training | 15
Sec. 6.2 | asd | P1 | accuracy | 80.50±0.07
Sec. 6.2 | asd-early72 | P1 | accuracy | 80.56
Sec. 6.2 | asd-early12 | P1 | the only weaker epoch | 12
Sec. 6.2 | asd-rewind | P1 | epochs of rewinding | 10
Sec. 6.2 | asd-rewind | P1 | accuracy | 80.18
Sec. 6.2 | kd | P1 | accuracy | 80.22
Sec. 6.2 | asd | P1 | accuracy with the true early checkpoint | 80.27
Table 8, caption | asd | P1 P2 P3 P6 P5 | pairs above KD | 4
Table 8, caption | paper | P1 P2 P3 P6 P5 | pairs | 5
Table 8, caption | protocol | P1 P2 P3 P6 P5 | seeds | 3
Sec. 6.3 | asd | P1 P2 P3 P6 P5 | pairs above KD | 4
Sec. 6.3 | paper | P1 P2 P3 P6 P5 | pairs | 5
Sec. 6.3 | asd | P6 | accuracy against kd | 1.33
Figure 2 | asd | P1 | % of samples closer to T_final | 99.9
Figure 2 | asd | P1 | InfoNCE, binary, nats | 0.601
Figure 2 | asd | P1 | signed cosine | -0.361
Figure 2 | kd | P1 | signed cosine | 0.003
Sec. 6.4 | asd | P1 | alignment with T_final | 0.90
Sec. 6.4 | asd | P1 | alignment with T_early | 0.61
Sec. 6.4 | asd | P12 | alignment with T_final | 0.52
Sec. 6.4 | asd | P12 | alignment with T_early | 0.34
Sec. 6.4 | asd | P1 P5 P3 P12 | shortcut magnitude, % against KD, from | -16
Sec. 6.4 | asd | P1 P5 P3 P12 | shortcut magnitude, % against KD, to | -28
Sec. 6.4 | asd | P1 | % of samples closer to T_final | 99.9
Sec. 6.4 | asd | P1 | InfoNCE, binary, nats | 0.601
Sec. 6.4 | asd | P1 | ceiling of binary InfoNCE, nats | 0.693
Sec. 6.4 | asd | P1 | signed cosine | -0.361
Sec. 6.4 | kd | P1 | signed cosine | 0.003
Sec. 6.4 | protocol | all | threshold of the signed cosine | -0.1
Sec. 6.4 | kd | P1 | % of samples above the threshold | 89.0
Sec. 6.4 | asd | P1 | % of samples above the threshold | 11.7
Sec. 6.4 | teacher | P1 | angle of shortcut and T_final's PCA, ° | 65.3
Sec. 6.4 | teacher | P1 | angle of shortcut and T_early's PCA, ° | 38.6
Sec. 6.4 | asd | P1 | projection on the robust subspace | 0.45
Sec. 6.4 | kd | P1 | projection on the robust subspace | 0.12
Sec. 6.4 | asd | P1 | accuracy beside stylised | 80.3
Sec. 6.4 | asd | P1 | stylised | 49.1
Sec. 6.4 | asd | P1 | stylised against clean | -31.12
Sec. 6.4 | kd | P1 | accuracy beside stylised | 80.2
Sec. 6.4 | kd | P1 | stylised | 48.1
Sec. 6.4 | kd | P1 | stylised against clean | -32.11
Sec. 6.4 | teacher | P1 | eigengap | 0.059
Sec. 6.4 | teacher | P1 | eigengap, relative | 0.029
Sec. 6.4 | teacher | P1 | angle between parts, ° | 32.6±1.6
Figure 3 | asd | P1 | projection on the robust subspace | 0.45
Figure 3 | kd | P1 | projection on the robust subspace | 0.12
Figure 3 | asd | P1 | stylised against clean | -31.12
Figure 3 | kd | P1 | stylised against clean | -32.11
Sec. 7 | paper | all | pairs | 13
Sec. 7 | asd | all | pairs with the highest accuracy | 10
Sec. 7 | asd | all | pairs above KD | 12
Sec. 7 | asd | P6 | mCE | 86.1
Sec. 7 | asd | P1 | signed cosine | -0.36
Sec. 7 | kd | P1 | signed cosine | 0.00
Sec. 7 | asd | P1 | projection on the robust subspace | 0.45
Sec. 7 | kd | P1 | projection on the robust subspace | 0.12
S-Sec. A.1.1 | protocol | all | negatives | 4159
S-Sec. A.1.1 | protocol | all | negatives in the batch | 63
S-Sec. A.1.1 | protocol | all | M | 4096
S-Sec. A.1.1 | protocol | all | samples of the softmax | 4160
S-Sec. A.1.1 | protocol | all | ceiling of InfoNCE, nats | 8.33
S-Sec. A.1.2 | protocol | all | ε | 0.1
S-Sec. A.1.2 | protocol | all | angular margin, ° | 84.26
S-Sec. A.1.2 | protocol | all | threshold of the signed cosine | -0.1
S-Sec. A.3 | protocol | P1 | samples of a diagnostic | 5000
S-Sec. A.3.1 | protocol | P1 | threshold of the signed cosine | -0.1
S-Sec. A.3.2 | protocol | P1 | directions of the robust subspace | 8
S-Sec. A.3.2 | protocol | P1 | samples of a diagnostic | 5000
S-Sec. A.3.3 | protocol | P1 | K of the shortcut | 4
S-Sec. A.3.3 | protocol | P1 | K of T_final's PCA | 4
S-Sec. A.3.3 | protocol | P1 | K of T_early's PCA | 4
S-Sec. A.3.4 | protocol | P1 | stylised images | 10000
S-Sec. A.3.5 | protocol | P1 | parts of the training set | 10
S-Sec. A.3.5 | protocol | P1 | pairs of parts | 45
S-Sec. A.3.5 | protocol | P1 | K of the shortcut | 4
S-Sec. A.3.5 | teacher | P1 | angle between parts, ° | 32.6±1.6
S-Sec. A.3.5 | protocol | P1 | pairs of parts | 45
S-Sec. A.3.6 | protocol | all | negatives | 4159
S-Sec. A.3.6 | protocol | all | ceiling of InfoNCE, nats | 8.33
S-Sec. A.3.6 | asd | P1 | L_TC without the temporal negative, nats | 7.21
S-Sec. A.3.6 | asd | P1 | InfoNCE, full, nats | 1.12
S-Sec. A.3.6 | asd | P1 | InfoNCE, binary, nats | 0.601
S-Sec. A.3.7 | protocol | P1 P5 P3 P12 | samples of a diagnostic | 5000
S-Table 1, caption | asd | P1 P5 P3 P12 | shortcut magnitude, % less, from | 16
S-Table 1, caption | asd | P1 P5 P3 P12 | shortcut magnitude, % less, to | 28
S-Sec. A.3.7 | CIFAR-100-C | all | corruptions | 15
S-Sec. A.3.7 | asd | P1 | ΔCE texture | -0.3
S-Sec. A.3.7 | asd | P1 | ΔCE weather | -2.0
S-Sec. A.3.7 | asd | P6 | ΔCE texture | -1.3
S-Sec. A.3.7 | asd | P6 | ΔCE weather | -3.4
S-Sec. A.3.7 | asd | P1 | ΔCE noise | 0.4
S-Sec. A.3.7 | asd | P6 | ΔCE noise | -0.5
S-Sec. A.3.8 | protocol | all | T_early, % of training | 15
S-Sec. A.3.8 | teacher | P1 | checkpoints | 7
S-Sec. A.3.8 | teacher | P1 | shortcut energy, highest | 0.253
S-Sec. A.3.8 | teacher | P1 | epoch of the highest shortcut energy | 35
S-Sec. A.3.8 | teacher | P1 | shortcut energy, fall in % | 49
S-Sec. A.3.8 | teacher | P1 | shortcut energy, final | 0.128
S-Sec. A.3.8 | teacher | P1 | robust energy, from | 0.104
S-Sec. A.3.8 | teacher | P1 | robust energy, to | 0.129
S-Sec. A.3.8 | protocol | all | T_early, % of training | 15
S-Table 2, caption | protocol | CIFAR-100 | epochs | 240
S-Table 2, caption | teacher | P1 | epoch of the highest shortcut energy | 35
Figure A.6 | protocol | all | T_early, % of training | 15
Figure A.6 | teacher | P1 | shortcut energy, highest | 0.25
Figure A.6 | teacher | P1 | shortcut energy, fall in % | 49
Figure A.6 | teacher | P1 | shortcut energy, final | 0.13
Figure A.6 | teacher | P1 | robust energy, from | 0.11
Figure A.6 | teacher | P1 | robust energy, to | 0.13
Figure A.6 | protocol | all | T_early, % of training | 15
S-Sec. A.3.9 | protocol | P11 | seeds | 3
S-Sec. A.3.9 | ImageNet-R | P11 | classes | 19
S-Sec. A.3.9 | ImageNet-R | P11 | images | 2286
S-Sec. A.3.9 | ImageNet-A | P11 | classes | 15
S-Sec. A.3.9 | ImageNet-A | P11 | images | 680
S-Sec. A.3.9 | protocol | P11 | ways of the prediction | 100
S-Sec. A.3.9 | stylised | P11 | style images | 300
S-Sec. A.3.9 | stylised | P11 | α | 1.0
S-Sec. A.3.9 | stylised | P11 | classes | 100
S-Sec. A.3.9 | stylised | P11 | images | 5000
S-Sec. A.3.9 | asd | P11 | ImageNet-R against kd | 1.17±0.06
S-Sec. A.3.9 | asd | P11 | stylised against kd | 0.84
S-Sec. A.3.9 | kd and asd | P11 | ImageNet-R against ce | 5
S-Sec. A.3.9 | kd and asd | P11 | stylised against ce | 4.6
S-Sec. A.3.9 | ImageNet-A | P11 | chance, % | 6.7
S-Sec. A.3.9 | ImageNet-A | P11 | ways of the overlap | 15
S-Sec. A.3.9 | ImageNet | all | classes | 1000
S-Sec. A.3.9 | ImageNet-100 | all | classes | 100
S-Table 3, caption | asd | P11 | ImageNet-R, seeds above KD | 3
S-Table 3, caption | asd | P11 | ImageNet-R against kd | 1.17±0.06
S-Table 3, caption | asd | P11 | stylised against kd | 0.84
S-Table 3, caption | ImageNet-A | P11 | chance, % | 6.7
S-Table 3, caption | ImageNet-A | P11 | ways of the overlap | 15
S-Sec. A.4 | protocol | P1 | seeds | 3
S-Table 4, caption | protocol | all | K | 4
S-Table 4, caption | asd-k8 | P1 | K that reaches the noise floor | 8
S-Table 5, caption | asd-eps0.05 | P1 | ε, too small | 0.05
S-Table 5, caption | asd-eps0.4 | P1 | ε, too large | 0.4
S-Table 5, caption | protocol | all | ε | 0.1
S-Table 5, caption | protocol | all | angular margin, ° | 84.3
S-Table 6, caption | asd-m0 | P1 | M without a queue | 0
S-Table 6, caption | protocol | all | M | 4096
S-Table 7, caption | asd-warmup0 | P1 | warm-up epochs, none | 0
S-Table 7, caption | asd | P1 | warm-up epochs beyond which it saturates | 20
S-Sec. A.4.5 | protocol | P1 | B | 64
S-Sec. A.4.5 | protocol | P1 | d_T | 512
S-Sec. A.4.5 | protocol | P1 | K | 4
S-Sec. A.4.5 | protocol | P1 | seeds | 3
S-Table 8, caption | protocol | P1 | seeds | 1
S-Table 8, caption | protocol | P1 | seeds of the default | 3
S-Table 8, caption | protocol | all | T_early, % of training | 15
S-Table 8, caption | asd | P1 | accuracy | 80.50
S-Table 8, caption | asd | P1 | mCE | 85.6
S-Table 8, caption | protocol | P1 | B | 64
S-Table 8, caption | teacher | P1 | angle of random subspaces, ° | 85.8
S-Table 8, caption | asd-b32 | P1 | B of the best accuracy and mCE | 32
S-Sec. A.4.6 | asd-rewind | P1 | epochs of rewinding | 10
S-Sec. A.4.6 | asd-rewind | P1 | rate of rewinding | 0.05
S-Sec. A.4.6 | asd-rewind | P1 | accuracy | 80.18
S-Sec. A.4.6 | kd | P1 | accuracy | 80.22
S-Sec. A.4.6 | asd-rewind | P1 | accuracy below the true checkpoint's, within | 0.1
S-Sec. A.4.6 | asd | P1 | accuracy with the true early checkpoint | 80.27
S-Sec. A.4.7 | student | deit-tiny | embedding | 192
S-Sec. A.4.7 | teacher | deit-tiny | embedding | 2048
S-Sec. A.4.7 | asd | deit-tiny | accuracy | 65.86
S-Sec. A.4.7 | kd | deit-tiny | accuracy | 64.00
S-Sec. A.4.7 | asd | deit-tiny | accuracy against kd | 1.86
S-Sec. A.5 | protocol | all | GB of a GPU | 40
S-Sec. A.5 | protocol | ImageNet-100 | GPUs | 4
S-Sec. A.5 | protocol | all | Python | 3.10
S-Sec. A.5 | protocol | all | PyTorch | 2.1
S-Sec. A.5 | protocol | all | CUDA | 11.8
S-Sec. A.5 | protocol | all | torchvision | 0.16
S-Sec. A.5 | protocol | all | scikit-learn | 1.3
S-Sec. A.5 | protocol | all | NumPy | 1.26
S-Sec. A.5 | paper | all | overhead of deterministic cuDNN, % | 25
S-Sec. A.5 | paper | all | difference by deterministic cuDNN, pp below | 0.1
S-Sec. A.5 | protocol | CIFAR-100 and TinyImageNet | padding | 4
S-Sec. A.5 | protocol | ImageNet-100 | image size | 224
S-Sec. A.5 | protocol | ImageNet-100 | colour jitter | 0.4
S-Sec. A.5 | protocol | all | α_kd | 1.0
S-Sec. A.5 | protocol | all | α_tc | 0.8
S-Sec. A.5 | protocol | all | α_ss | 1.0
S-Sec. A.5 | protocol | all | τ_kd | 4.0
S-Sec. A.5 | protocol | all | τ_c | 0.07
S-Sec. A.5 | protocol | all | ε | 0.1
S-Sec. A.5 | protocol | all | K | 4
S-Sec. A.5 | protocol | all | M | 4096
S-Sec. A.5 | protocol | all | warm-up epochs | 20
S-Sec. A.5 | protocol | CIFAR-100 | T_early epoch | 36
S-Sec. A.5 | protocol | CIFAR-100 | epochs | 240
S-Sec. A.5 | protocol | CIFAR-100 | T_early, % of training | 15
S-Sec. A.5 | protocol | TinyImageNet | T_early epoch | 30
S-Sec. A.5 | protocol | TinyImageNet | epochs | 200
S-Sec. A.5 | protocol | TinyImageNet | T_early, % of training | 15
S-Sec. A.5 | protocol | ImageNet-100 | T_early epoch | 15
S-Sec. A.5 | protocol | ImageNet-100 | epochs | 100
S-Sec. A.5 | protocol | ImageNet-100 | T_early, % of training | 15
S-Sec. A.5 | protocol | all | T_early, % of training | 15
S-Sec. A.5 | asd | P1 | stable T_early, % of training, from | 10
S-Sec. A.5 | asd | P1 | stable T_early, % of training, to | 30
S-Sec. A.5 | asd | CIFAR-100 | A100-hours of a run | 4.5
S-Sec. A.5 | paper | CIFAR-100 | pairs | 13
S-Sec. A.5 | paper | CIFAR-100 | seeds | 3
S-Sec. A.5 | paper | CIFAR-100 | A100-hours | 175
S-Sec. A.5 | paper | ImageNet-100 and TinyImageNet | A100-hours | 75
S-Sec. A.5 | paper | all | A100-hours | 250
S-Sec. A.6 | asd | P12 | std of accuracy | 1.45
S-Sec. A.6 | asd | P12 | accuracy against crd+kd | 0.98
S-Table 9, caption | asd | P12 | seeds above crd+kd | 3
S-Table 9, caption | asd | P12 | accuracy against crd+kd, lowest | 0.62
S-Table 9, caption | asd | P12 | accuracy against crd+kd, highest | 1.18
S-Sec. A.6 | asd | P12 | seeds above crd+kd | 3
S-Sec. A.6 | paper | P12 | seeds | 3
S-Sec. A.6 | asd | P12 | p of the one-sided sign test | 0.125
S-Sec. A.6 | paper | P12 | level of significance | 0.05
S-Sec. A.6 | paper | P12 | meaningful margin, pp | 0.5
S-Sec. A.6 | asd | P12 | accuracy against crd+kd, unpaired | 0.98±1.45
S-Sec. A.7 | teacher | P1 | λ₁, uncentred | 4.79
S-Sec. A.7 | teacher | P1 | λ₁, centred, by the remark | 0.64
S-Sec. A.7 | teacher | P1 | λ₁, centred | 2.06
S-Sec. A.7 | teacher | P1 | λ₂, centred | 1.84
S-Sec. A.7 | teacher | P1 | λ_K, centred | 0.85
S-Sec. A.7 | teacher | P1 | λ_K+1, centred | 0.79
S-Sec. A.7 | teacher | P1 | eigengap | 0.059
S-Sec. A.7 | teacher | P1 | eigengap, relative | 0.029
S-Sec. A.7 | teacher | P1 | perturbation | 0.06
S-Sec. A.7 | protocol | P1 | B | 64
S-Sec. A.7 | teacher | P1 | sin Θ bound, at least | 1
S-Sec. A.7 | teacher | P1 | angle between parts, ° | 32.6±1.6
S-Sec. A.7 | teacher | P1 | std of the angle between parts, ° | 1.6
S-Sec. A.7 | asd | all | L_SS at the end, below | 0.005
S-Sec. A.8 | teacher | P1 | parameters, millions | 21
S-Sec. A.8 | protocol | all | bytes of a number | 4
S-Sec. A.8 | protocol | all | M | 4096
S-Sec. A.8 | protocol | P1 | d_T | 512
S-Sec. A.8 | asd | P1 | MB of the queue | 8
S-Sec. A.8 | asd | P1 | overhead of the T_early pass, % | 12
S-Sec. A.8 | protocol | all | d_T, at most | 512
S-Sec. A.8 | asd | P1 | ms of the eigenspace, below | 3
S-Sec. A.8 | asd | P1 | ms of the contrast | 5
S-Sec. A.8 | asd | P1 | overhead in all, %, from | 15
S-Sec. A.8 | asd | P1 | overhead in all, %, to | 20
S-Sec. A.9.1 | kd | P3 | accuracy, called random in-batch negatives | 73.32
S-Sec. A.9.1 | asd | P3 | accuracy | 73.13
S-Sec. A.9.1 | ckptkd | P3 | mCE | 96.6
S-Sec. A.9.1 | kd | P3 | mCE | 98.1
S-Sec. A.9.1 | kd | P3 | projection on the shortcut | 0.07
S-Sec. A.9.1 | kd | P1 | projection on the shortcut | 0.21
S-Sec. A.9.2 | asd | P2 | mCE | 94.2
S-Sec. A.9.2 | kd | P2 | mCE | 93.7
S-Sec. A.9.2 | dkd | P2 | mCE | 93.4
S-Sec. A.10 | protocol | ADE20K | classes of the t-SNE | 50
S-Sec. A.10 | protocol | ADE20K | scenes | 16
S-Figure 1 | protocol | ADE20K | classes of the t-SNE | 50
"""
