{{/* The second network. Usage: $ */}}
{{- define "llm-ray.validate.fabric" -}}
{{- $root := . -}}
{{- $fabric := .Values.fabric -}}
{{- $networks := (include "llm-ray.networks" . | fromJson).networks -}}
{{- if and (eq $fabric.type "none") $fabric.networks -}}
{{- include "llm-ray.refuse" (list "fabric.networks" (keys $fabric.networks | sortAlpha) "be empty with fabric.type none, or the pods would do without them in silence" "set fabric.type") -}}
{{- end -}}
{{- if and (ne $fabric.type "none") (not $networks) -}}
{{- include "llm-ray.refuse" (list "fabric.networks" nil (printf "name at least one network with fabric.type %s" $fabric.type) "add one, or set fabric.type to none") -}}
{{- end -}}
{{- if and $fabric.requireRdma (or (eq $fabric.type "none") (not $fabric.rdma)) -}}
{{- include "llm-ray.refuse" (list "fabric.requireRdma" true (printf "be false with fabric.type %s and fabric.rdma %v: NCCL would find no device" $fabric.type $fabric.rdma) "set fabric.type and fabric.rdma, or leave it false") -}}
{{- end -}}
{{- range $networks -}}
{{- include "llm-ray.validate.network" (list $root .) -}}
{{- if .spec.existing -}}
{{- include "llm-ray.validate.existingNetwork" (list $root .) -}}
{{- else -}}
{{- include "llm-ray.validate.ipam" (list $root .) -}}
{{- include "llm-ray.validate.foreignKeys" (list (printf "fabric.networks.%s" .name) .spec $fabric.type) -}}
{{- include "llm-ray.validate.newNetwork" (list $root .) -}}
{{- end -}}
{{- end -}}
{{- if $networks -}}
{{- include "llm-ray.validate.interfaces" $networks -}}
{{- range (include "llm-ray.groups" . | fromJson).groups -}}
{{- if .spec.fabric -}}
{{- include "llm-ray.validate.fabricGroup" (list $root .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* One network, whoever made it. Usage: (list $ NETWORK) */}}
{{- define "llm-ray.validate.network" -}}
{{- $type := (index . 0).Values.fabric.type -}}
{{- $key := printf "fabric.networks.%s" (index . 1).name -}}
{{- with (index . 1).spec -}}
{{- $devices := has $type (list "sriov" "ib-sriov" "host-device") -}}
{{- if and $devices (not .resourceName) -}}
{{- include "llm-ray.refuse" (list (printf "%s.resourceName" $key) "" (printf "name the device plugin's resource with fabric.type %s, or no pod gets a device" $type) "set it to what kubectl describe node shows, e.g. nvidia.com/rail0") -}}
{{- end -}}
{{- if and (not $devices) (not .master) (not .existing) -}}
{{- include "llm-ray.refuse" (list (printf "%s.master" $key) "" (printf "name the node's interface with fabric.type %s" $type) "set it, e.g. to ens1f0 or ib0") -}}
{{- end -}}
{{- if and .interfaces (ne (len .interfaces) (int .count)) -}}
{{- include "llm-ray.refuse" (list (printf "%s.interfaces" $key) .interfaces (printf "name one interface for each of count (%d)" (int .count)) "make them equal, or leave interfaces empty") -}}
{{- end -}}
{{- if and .sriovNetwork.create (or .existing (not (has $type (list "sriov" "ib-sriov")))) -}}
{{- include "llm-ray.refuse" (list (printf "%s.sriovNetwork.create" $key) true (printf "be false with fabric.type %s or an existing network: one object makes the definition" $type) "take one of them out") -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* One authority gives addresses to all nodes, and the pod network keeps the default route. Usage: (list $ NETWORK) */}}
{{- define "llm-ray.validate.ipam" -}}
{{- $root := index . 0 -}}
{{- $key := printf "fabric.networks.%s.ipam" (index . 1).name -}}
{{- $count := int (index . 1).spec.count -}}
{{- with (index . 1).spec.ipam -}}
{{- $pods := 0 -}}
{{- range (include "llm-ray.groups" $root | fromJson).groups -}}
{{- $pods = add $pods (.spec.fabric | ternary (mul .maxReplicas .hosts) 0) -}}
{{- end -}}
{{- if eq .type "host-local" -}}
{{- include "llm-ray.refuse" (list (printf "%s.type" $key) .type "be one authority for all nodes: host-local numbers each node from the start, so that two pods get one address" "set it to whereabouts or nv-ipam") -}}
{{- end -}}
{{- if and (eq .type "static") (or (gt (int $pods) 1) (ne $count 1) (empty .addresses)) -}}
{{- include "llm-ray.refuse" (list (printf "%s.addresses" $key) .addresses (printf "be those of the only interface: there are %d pods with count %d, and all would have the same" (int $pods) $count) "set ipam.type to whereabouts or nv-ipam") -}}
{{- end -}}
{{- if and (eq .type "whereabouts") (not .range) -}}
{{- include "llm-ray.refuse" (list (printf "%s.range" $key) "" "say which addresses whereabouts gives out" "set it, e.g. to 10.56.0.0/16") -}}
{{- end -}}
{{- if and (eq .type "nv-ipam") (not .poolName) -}}
{{- include "llm-ray.refuse" (list (printf "%s.poolName" $key) "" "name a pool of nv-ipam" "set it to an IPPool or CIDRPool") -}}
{{- end -}}
{{- range .routes -}}
{{- if or (hasSuffix "/0" .dst) (eq .dst "default") -}}
{{- include "llm-ray.refuse" (list (printf "%s.routes" $key) .dst "be no default route, which would take the pod's DNS and API traffic" "take it out") -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Keys that the type or the IPAM does not know, which nothing would read. Usage: (list KEY SPEC TYPE) */}}
{{- define "llm-ray.validate.foreignKeys" -}}
{{- $key := index . 0 -}}
{{- $spec := index . 1 -}}
{{- $type := index . 2 -}}
{{- $types := dict "master" (list "macvlan" "ipoib") "mtu" (list "macvlan") "vlan" (list "sriov") "linkState" (list "sriov" "ib-sriov")
  "trust" (list "sriov") "spoofChk" (list "sriov") "pkey" (list "ib-sriov") "ibKubernetes" (list "ib-sriov")
  "isolateRdma" (list "sriov" "ib-sriov" "host-device") -}}
{{- range $name, $known := $types -}}
{{- $value := index $spec $name -}}
{{- if not (or (has $type $known) (kindIs "invalid" $value) (has $value (list "" false))) -}}
{{- include "llm-ray.refuse" (list (printf "%s.%s" $key $name) $value (printf "be unset with fabric.type %s, which does not know it" $type) "take it out") -}}
{{- end -}}
{{- end -}}
{{- $ipams := dict "range" (list "whereabouts") "exclude" (list "whereabouts") "rangeStart" (list "whereabouts") "rangeEnd" (list "whereabouts")
  "poolName" (list "nv-ipam") "addresses" (list "static") "routes" (list "whereabouts" "static") -}}
{{- range $name, $known := $ipams -}}
{{- $value := index $spec.ipam $name -}}
{{- if and $value (not (has $spec.ipam.type (append $known "host-local"))) -}}
{{- include "llm-ray.refuse" (list (printf "%s.ipam.%s" $key $name) $value (printf "be unset with ipam.type %s, which does not know it" $spec.ipam.type) "take it out") -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* A group that has the networks. Usage: (list $ GROUP) */}}
{{- define "llm-ray.validate.fabricGroup" -}}
{{- $devices := include "llm-ray.fabricResources" . | fromYaml -}}
{{- with index . 1 -}}
{{- $key := printf "workers.%s" .name -}}
{{- $resources := .spec.resources -}}
{{- if .spec.hostNetwork -}}
{{- include "llm-ray.refuse" (list (printf "%s.hostNetwork" $key) true "be false with fabric.networks: Multus adds no interface to the node's network" "set it to false, or workers' fabric to false") -}}
{{- end -}}
{{- if hasKey .spec.podAnnotations "k8s.v1.cni.cncf.io/networks" -}}
{{- include "llm-ray.refuse" (list (printf "%s.podAnnotations" $key) "k8s.v1.cni.cncf.io/networks" "be left to fabric.networks" "name the network there by existing") -}}
{{- end -}}
{{- range $section := list "requests" "limits" -}}
{{- range $name, $count := $devices -}}
{{- $given := index (index $resources $section | default dict) $name -}}
{{- if not (kindIs "invalid" $given) -}}
{{- if ne (include "llm-ray.milli" $given | int64) (mul $count 1000 | int64) -}}
{{- include "llm-ray.refuse" (list (printf "%s.resources.%s.%s" $key $section $name) $given (printf "equal the %d entries that fabric.networks gives the pod: a device without an entry gets no interface" (int $count)) "take it out, and set the network's count") -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
