module edgemesh/build

go 1.26.0

require (
	edgemesh v0.0.0
	github.com/klauspost/compress v1.20.1
	github.com/spdx/tools-golang v0.5.5
	sigs.k8s.io/yaml v1.6.0
)

require (
	github.com/anchore/go-struct-converter v0.0.0-20221118182256-c68fdcfa2092 // indirect
	go.yaml.in/yaml/v2 v2.4.4 // indirect
)

replace edgemesh => ../
