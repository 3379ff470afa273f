{{/* Configuration of the CNI and IPAM plugins of fabric.networks. Always built by toJson: a string put together breaks. */}}

{{/* ipam of a CNI configuration. Usage: SPEC of a network → JSON */}}
{{- define "llm-ray.ipam" -}}
{{- $out := dict -}}
{{- with .ipam -}}
{{- if eq .type "whereabouts" -}}
{{- $out = dict "type" "whereabouts" "range" .range "exclude" .exclude "range_start" .rangeStart "range_end" .rangeEnd "routes" .routes -}}
{{- else if eq .type "nv-ipam" -}}
{{- $out = dict "type" "nv-ipam" "poolName" .poolName "poolType" .poolType -}}
{{- else if eq .type "static" -}}
{{- $addresses := list -}}
{{- range .addresses -}}
{{- $addresses = append $addresses (dict "address" .) -}}
{{- end -}}
{{- $out = dict "type" "static" "addresses" $addresses "routes" .routes -}}
{{- end -}}
{{- end -}}
{{- include "llm-ray.filled" $out | fromYaml | toJson -}}
{{- end -}}

{{/* One plugin of a CNI configuration, without cniVersion and name. Usage: (list $ SPEC) → JSON */}}
{{- define "llm-ray.cniPlugin" -}}
{{- $type := (index . 0).Values.fabric.type -}}
{{- $plugin := dict "type" $type "ipam" (include "llm-ray.ipam" (index . 1) | fromJson) -}}
{{- with index . 1 -}}
{{- if eq $type "sriov" -}}
{{- if not (kindIs "invalid" .vlan) -}}
{{- $_ := set $plugin "vlan" (int .vlan) -}}
{{- end -}}
{{- $plugin = merge $plugin (include "llm-ray.filled" (dict "link_state" .linkState "spoofchk" (include "llm-ray.onOff" .spoofChk)
  "trust" (include "llm-ray.onOff" .trust)) | fromYaml) -}}
{{- else if eq $type "ib-sriov" -}}
{{- $plugin = merge $plugin (include "llm-ray.filled" (dict "link_state" .linkState "pkey" .pkey "ibKubernetesEnabled" .ibKubernetes
  "rdmaIsolation" .isolateRdma) | fromYaml) -}}
{{- else if eq $type "macvlan" -}}
{{- $plugin = merge $plugin (dict "master" .master "mode" .mode) -}}
{{- with .mtu -}}
{{- $_ := set $plugin "mtu" (int .) -}}
{{- end -}}
{{- else if eq $type "ipoib" -}}
{{- $_ := set $plugin "master" .master -}}
{{- end -}}
{{- end -}}
{{- toJson $plugin -}}
{{- end -}}

{{/* on, off, or nothing when unset. Usage: BOOLEAN or null */}}
{{- define "llm-ray.onOff" -}}
{{- if kindIs "bool" . -}}
{{- . | ternary "on" "off" -}}
{{- end -}}
{{- end -}}

{{/*
config of a NetworkAttachmentDefinition. To hide the node's other RDMA devices ib-sriov has an option; the others need the
rdma plugin after them. Usage: (list $ NETWORK) → JSON
*/}}
{{- define "llm-ray.cniConfig" -}}
{{- $network := index . 1 -}}
{{- $plugin := include "llm-ray.cniPlugin" (list (index . 0) $network.spec) | fromJson -}}
{{- $config := dict "cniVersion" "1.0.0" "name" $network.nad -}}
{{- if and $network.spec.isolateRdma (ne $plugin.type "ib-sriov") -}}
{{- merge $config (dict "plugins" (list $plugin (dict "type" "rdma"))) | toJson -}}
{{- else -}}
{{- merge $config $plugin | toJson -}}
{{- end -}}
{{- end -}}

{{/* spec of a SriovNetwork or SriovIBNetwork: the operator writes its own prefix before resourceName. Usage: (list $ NETWORK) → YAML map */}}
{{- define "llm-ray.sriovNetworkSpec" -}}
{{- $root := index . 0 -}}
{{- with (index . 1).spec -}}
{{- $out := dict "networkNamespace" $root.Release.Namespace "resourceName" (splitList "/" .resourceName | last)
  "linkState" .linkState "ipam" (eq .ipam.type "none" | ternary "" (include "llm-ray.ipam" .)) "metaPlugins" (.isolateRdma | ternary (dict "type" "rdma" | toJson) "") -}}
{{- if eq $root.Values.fabric.type "sriov" -}}
{{- $out = merge $out (dict "spoofChk" (include "llm-ray.onOff" .spoofChk) "trust" (include "llm-ray.onOff" .trust) "vlan" (.vlan | default 0 | int)) -}}
{{- end -}}
{{- include "llm-ray.filled" $out -}}
{{- end -}}
{{- end -}}
